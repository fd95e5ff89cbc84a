package org.apache.iceberg.rest;

import java.util.Map;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.junit.jupiter.api.BeforeEach;

/** Iceberg's tests of scan planning, with the server at the system property `served.uri` instead of their own. */
public class ServedScanPlanning extends TestRESTScanPlanning {
  @BeforeEach
  @Override
  public void before() throws Exception {
    super.before();
    restCatalog.close();
    restCatalog = new RESTCatalog();
    restCatalog.initialize(catalogName(), Map.of("uri", System.getProperty("served.uri")));
    for (Namespace namespace : restCatalog.listNamespaces()) {
      for (TableIdentifier table : restCatalog.listTables(namespace)) {
        restCatalog.dropTable(table, false);
      }
      restCatalog.dropNamespace(namespace);
    }
  }
}
