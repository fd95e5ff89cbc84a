import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;

/** Creates a table and upserts rows into it from one streaming job on Flink's MiniCluster, which commits at every checkpoint. */
public class FlinkUpserts {
  public static void main(String[] arguments) throws Exception {
    String database = arguments[0], warehouse = arguments[1], table = arguments[2], version = arguments[3];
    int rows = Integer.parseInt(arguments[4]), ids = Integer.parseInt(arguments[5]), perSecond = Integer.parseInt(arguments[6]);
    String partitioned = arguments[7].isEmpty() ? "" : "PARTITIONED BY (" + arguments[7] + ")";
    Configuration settings = new Configuration();
    settings.setString("execution.checkpointing.interval", "700ms");
    settings.setString("parallelism.default", "1");
    settings.setString("restart-strategy.type", "fixed-delay");
    settings.setString("restart-strategy.fixed-delay.attempts", "3");
    TableEnvironment flink =
        TableEnvironment.create(EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(settings).build());
    flink.executeSql(
        "CREATE CATALOG `local` WITH ('type' = 'iceberg', 'catalog-impl' = 'org.apache.iceberg.jdbc.JdbcCatalog', "
            + "'uri' = 'jdbc:sqlite:" + database + "?busy_timeout=60000', 'jdbc.schema-version' = 'V1', "
            + "'warehouse' = '" + warehouse + "', 'cache-enabled' = 'false')");
    flink.executeSql("CREATE DATABASE IF NOT EXISTS `local`.flink");
    flink.executeSql(
        "CREATE TABLE `local`.flink." + table + " (id BIGINT, region STRING, v BIGINT, note STRING, "
            + "PRIMARY KEY (id, region) NOT ENFORCED) " + partitioned + " WITH ('format-version' = '" + version
            + "', 'write.upsert.enabled' = 'true', 'commit.retry.num-retries' = '50', 'commit.retry.max-wait-ms' = '1000')");
    flink.executeSql(
        "CREATE TEMPORARY TABLE numbers (k BIGINT) WITH ('connector' = 'datagen', 'fields.k.kind' = 'sequence', "
            + "'fields.k.start' = '0', 'fields.k.end' = '" + (rows - 1) + "', 'rows-per-second' = '" + perSecond + "')");
    System.out.println("created");
    flink
        .executeSql(
            "INSERT INTO `local`.flink." + table + " SELECT k % " + ids + ", CONCAT('r', CAST(k % " + ids
                + " % 3 AS STRING)), k, CAST(NULL AS STRING) FROM numbers")
        .await();
    System.out.println("finished");
  }
}
