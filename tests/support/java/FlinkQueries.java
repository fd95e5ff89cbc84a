import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/**
 * Runs SQL statements with Flink in this process and prints the rows of queries. "STREAM query" begins a query that does
 * not end, and "NEXT n" prints its next n rows; other statements run in batch mode.
 */
public class FlinkQueries {
  public static void main(String[] statements) throws Exception {
    TableEnvironment batch = environment(EnvironmentSettings.newInstance().inBatchMode());
    TableEnvironment streaming = environment(EnvironmentSettings.newInstance().inStreamingMode());
    CloseableIterator<Row> stream = null;
    for (String statement : statements) {
      if (statement.startsWith("STREAM ")) {
        stream = streaming.executeSql(statement.substring("STREAM ".length())).collect();
      } else if (statement.startsWith("NEXT ")) {
        for (int left = Integer.parseInt(statement.substring("NEXT ".length())); left > 0; left--) {
          System.out.println("row " + stream.next());
        }
      } else if (statement.startsWith("SELECT")) {
        try (CloseableIterator<Row> rows = batch.executeSql(statement).collect()) {
          rows.forEachRemaining(row -> System.out.println("row " + row));
        }
      } else {
        if (statement.startsWith("CREATE CATALOG")) {
          streaming.executeSql(statement).await();
        }
        batch.executeSql(statement).await();
      }
    }
    if (stream != null) {
      stream.close();
    }
  }

  private static TableEnvironment environment(EnvironmentSettings.Builder mode) {
    Configuration settings = new Configuration();
    settings.setString("parallelism.default", "1");
    settings.setString("execution.checkpointing.interval", "200 ms");
    return TableEnvironment.create(mode.withConfiguration(settings).build());
  }
}
