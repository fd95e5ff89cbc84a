import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/** Runs SQL statements with Flink in this process and prints the rows of queries. */
public class FlinkQueries {
  public static void main(String[] statements) throws Exception {
    Configuration settings = new Configuration();
    settings.setString("parallelism.default", "1");
    TableEnvironment environment =
        TableEnvironment.create(EnvironmentSettings.newInstance().inBatchMode().withConfiguration(settings).build());
    for (String statement : statements) {
      TableResult result = environment.executeSql(statement);
      if (statement.startsWith("SELECT")) {
        try (CloseableIterator<Row> rows = result.collect()) {
          rows.forEachRemaining(row -> System.out.println("row " + row));
        }
      } else {
        result.await();
      }
    }
  }
}
