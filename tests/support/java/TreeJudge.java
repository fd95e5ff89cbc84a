package org.apache.iceberg;

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.expressions.ExpressionParser;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.mumbling.MumblingBitmaps;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.iceberg.types.Types;

/**
 * Answers questions about v4 manifests with the package-private classes of the released jar.
 *
 * <p>One JSON request per line of stdin, one JSON answer per line of stdout: {"result": …} or {"error": …}.
 */
public final class TreeJudge {
  private static final ObjectMapper MAPPER = new ObjectMapper();

  private TreeJudge() {}

  public static void main(String[] args) throws Exception {
    PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    System.setOut(System.err);
    BufferedReader in =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      Map<String, Object> answer = new LinkedHashMap<>();
      try {
        answer.put("result", new Request(MAPPER.readTree(line)).answer());
      } catch (Exception | Error e) {
        answer.put("error", e.getClass().getSimpleName() + ": " + e.getMessage());
      }
      out.println(MAPPER.writeValueAsString(answer));
    }
  }

  private static final class Request {
    private final JsonNode given;
    private final FileIO io = new Disk();
    private TableMetadata table;
    private Expression filter = Expressions.alwaysTrue();

    Request(JsonNode given) {
      this.given = given;
    }

    Object answer() throws Exception {
      String what = given.get("what").asText();
      if (what.equals("bitmap")) {
        return positions(
            MumblingBitmaps.read(ByteBuffer.wrap(HexFormat.of().parseHex(text("hex")))));
      }

      Path path = Path.of(text("metadata"));
      this.table = TableMetadataParser.fromJson(path.toString(), java.nio.file.Files.readString(path));
      if (given.hasNonNull("filter")) {
        this.filter = ExpressionParser.fromJson(text("filter"), table.schema());
      }

      switch (what) {
        case "schema":
          return MAPPER.readTree(SchemaParser.toJson(schema()));
        case "read":
          return rows(referred(text("manifest"), number("snapshot"), number("sequence"), number("row")));
        case "plan":
          return plan();
        case "plan-v3":
          return planV3();
        default:
          throw new IllegalArgumentException("unknown request " + what);
      }
    }

    private String text(String name) {
      return given.get(name).asText();
    }

    private Long number(String name) {
      return given.hasNonNull(name) ? given.get(name).asLong() : null;
    }

    private MetricsConfig metrics() {
      return MetricsConfig.from(Map.of(), table.schema(), table.sortOrder());
    }

    private Schema schema() {
      return TrackedFile.schema(
          Partitioning.unionPartitionTypes(table.specs()),
          StatsUtil.statsWriteSchema(table.schema(), metrics()));
    }

    private V4ManifestReader.Builder reader(ManifestFile manifest) {
      return V4ManifestReader.builder(manifest, io, table.schema(), table.specsById())
          .tableLocation(table.location())
          .filter(filter);
    }

    private List<Object> rows(ManifestFile manifest) throws Exception {
      List<Object> found = new ArrayList<>();
      V4ManifestReader.Builder builder = reader(manifest).metricsConfig(metrics());
      if (given.path("all").asBoolean()) {
        builder.includeAll();
      }

      try (V4ManifestReader reader = builder.build()) {
        for (TrackedFile file : reader) {
          found.add(row(file));
        }
      }

      return found;
    }

    /** The data files of a tree that the filter keeps, and the CPU time on the way. */
    private Object plan() throws Exception {
      Map<String, Object> found = new LinkedHashMap<>();
      List<Long> times = new ArrayList<>();
      for (int run = 0; run < given.path("runs").asInt(1); run += 1) {
        long before = cpu();
        List<String> files = new ArrayList<>();
        List<TrackedFile> leaves = new ArrayList<>();
        ManifestFile root = referred(text("root"), 1L, 1L, 0L);
        try (V4ManifestReader reader = reader(root).forScanPlanning().build()) {
          collect(reader, null, files, leaves);
        }

        int opened = leaves.size();
        for (TrackedFile leaf : leaves) {
          ManifestFile bare = TrackedFileAdapters.asManifestFile(withoutVector(leaf));
          try (V4ManifestReader reader = reader(bare).forScanPlanning().build()) {
            collect(reader, leaf.manifestInfo().manifestDeletionVector(), files, new ArrayList<>());
          }
        }

        times.add(cpu() - before);
        found.put("count", files.size());
        found.put("files", given.path("runs").asInt(1) > 1 ? List.of() : files);
        found.put("leaves", opened);
      }

      found.put("cpu_ns", times);
      return found;
    }

    /** The data files of the v3 manifests that the filter keeps, and the CPU time on the way. */
    private Object planV3() throws Exception {
      Map<String, Object> found = new LinkedHashMap<>();
      List<Long> times = new ArrayList<>();
      for (int run = 0; run < given.path("runs").asInt(1); run += 1) {
        long before = cpu();
        long files = 0;
        Table loaded = new BaseTable(new StaticTableOperations(table, io), "t");
        TableScan scan = loaded.newScan().filter(filter);
        try (CloseableIterable<FileScanTask> tasks = scan.planFiles()) {
          for (FileScanTask task : tasks) {
            files += task.file().recordCount() >= 0 ? 1 : 0;
          }
        }

        times.add(cpu() - before);
        found.put("count", files);
      }

      found.put("cpu_ns", times);
      return found;
    }

    private static void collect(
        V4ManifestReader reader, ManifestBitmap removed, List<String> files, List<TrackedFile> leaves) {
      for (TrackedFile file : reader) {
        if (removed != null && removed.isSet((int) file.tracking().manifestPos())) {
          continue;
        }

        if (file.contentType() == FileContent.DATA_MANIFEST) {
          leaves.add(file);
        } else if (file.contentType() == FileContent.DATA) {
          files.add(file.location());
        }
      }
    }

    private ManifestFile referred(String path, Long snapshot, Long sequence, Long firstRow) {
      long number = sequence == null ? 0L : sequence;
      Tracking tracking =
          new TrackingStruct(EntryStatus.ADDED, snapshot, number, number, null, firstRow, null, null);
      ManifestInfo none = new ManifestInfoStruct(0, 0, 0, 0, 0L, 0L, 0L, 0L, 0L, null);
      return TrackedFileAdapters.asManifestFile(manifest(tracking, path, Disk.file(path).length(), none));
    }

    private static TrackedFile withoutVector(TrackedFile leaf) {
      ManifestInfo with = leaf.manifestInfo();
      ManifestInfo info =
          new ManifestInfoStruct(
              with.addedFilesCount(),
              with.existingFilesCount(),
              with.deletedFilesCount(),
              with.replacedFilesCount(),
              with.addedRowsCount(),
              with.existingRowsCount(),
              with.deletedRowsCount(),
              with.replacedRowsCount(),
              with.minSequenceNumber(),
              null);
      return manifest(leaf.tracking(), leaf.location(), leaf.fileSizeInBytes(), info);
    }

    private static TrackedFile manifest(Tracking tracking, String path, long size, ManifestInfo info) {
      return new TrackedFileStruct(
          tracking, FileContent.DATA_MANIFEST, 4, path, FileFormat.PARQUET, 1L, size, null, null, null, null, null,
          info, null, null, null);
    }

    private Map<String, Object> row(TrackedFile file) {
      Map<String, Object> found = new LinkedHashMap<>();
      found.put("content_type", file.contentType().id());
      found.put("format_version", file.formatVersion());
      found.put("location", file.location());
      found.put("file_format", file.fileFormat().name());
      found.put("record_count", file.recordCount());
      found.put("file_size_in_bytes", file.fileSizeInBytes());
      found.put("spec_id", file.specId());
      found.put("sort_order_id", file.sortOrderId());
      found.put("split_offsets", file.splitOffsets());
      found.put("key_metadata", plain(file.keyMetadata()));
      Tracking tracking = file.tracking();
      found.put("status", tracking.status().ordinal());
      found.put("snapshot_id", tracking.snapshotId());
      found.put("sequence_number", tracking.dataSequenceNumber());
      found.put("file_sequence_number", tracking.fileSequenceNumber());
      found.put("dv_snapshot_id", tracking.dvSnapshotId());
      found.put("first_row_id", tracking.firstRowId());
      found.put("deleted_positions", plain(tracking.deletedPositions()));
      found.put("replaced_positions", plain(tracking.replacedPositions()));
      found.put("position", tracking.manifestPos());
      if (file.partition() != null) {
        Types.StructType union = ((PartitionData) file.partition()).getPartitionType();
        Map<String, Object> tuple = new TreeMap<>();
        for (int at = 0; at < union.fields().size(); at += 1) {
          tuple.put(
              String.valueOf(union.fields().get(at).fieldId()),
              plain(file.partition().get(at, Object.class)));
        }

        found.put("partition", tuple);
      }

      if (file.contentStats() != null) {
        Map<String, Object> stats = new TreeMap<>();
        for (FieldStats<?> one : file.contentStats().fieldStats()) {
          if (one != null) {
            Map<String, Object> shown = new LinkedHashMap<>();
            shown.put("lower", plain(one.lowerBound()));
            shown.put("upper", plain(one.upperBound()));
            shown.put("tight", one.tightBounds());
            shown.put("values", one.hasValueCount() ? one.valueCount() : null);
            shown.put("nulls", one.hasNullValueCount() ? one.nullValueCount() : null);
            shown.put("nans", one.hasNanValueCount() ? one.nanValueCount() : null);
            stats.put(String.valueOf(one.fieldId()), shown);
          }
        }

        found.put("stats", stats);
      }

      if (file.deletionVector() != null) {
        DeletionVector vector = file.deletionVector();
        found.put(
            "deletion_vector",
            List.of(vector.location(), vector.offset(), vector.sizeInBytes(), vector.cardinality()));
      }

      if (file.manifestInfo() != null) {
        ManifestInfo info = file.manifestInfo();
        found.put(
            "manifest_info",
            List.of(
                info.addedFilesCount(), info.existingFilesCount(), info.deletedFilesCount(),
                info.replacedFilesCount(), info.addedRowsCount(), info.existingRowsCount(),
                info.deletedRowsCount(), info.replacedRowsCount(), info.minSequenceNumber()));
        found.put("removed", info.manifestDeletionVector() == null ? null : positions(info.manifestDeletionVector()));
      }

      return found;
    }
  }

  private static long cpu() {
    return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
        .getProcessCpuTime();
  }

  private static List<Integer> positions(ManifestBitmap bitmap) {
    List<Integer> found = new ArrayList<>();
    for (int at = 0; found.size() < bitmap.cardinality(); at += 1) {
      if (bitmap.isSet(at)) {
        found.add(at);
      }
    }

    return found;
  }

  private static Object plain(Object value) {
    if (value instanceof ByteBuffer) {
      ByteBuffer copy = ((ByteBuffer) value).duplicate();
      byte[] bytes = new byte[copy.remaining()];
      copy.get(bytes);
      return HexFormat.of().formatHex(bytes);
    } else if (value instanceof byte[]) {
      return HexFormat.of().formatHex((byte[]) value);
    } else if (value == null || value instanceof Number || value instanceof Boolean) {
      return value instanceof java.math.BigDecimal ? value.toString() : value;
    }

    return value.toString();
  }

  private static final class Disk implements FileIO {
    static File file(String location) {
      return new File(location.startsWith("file:") ? location.replaceFirst("^file:(//)?", "") : location);
    }

    @Override
    public InputFile newInputFile(String path) {
      return Files.localInput(file(path));
    }

    @Override
    public OutputFile newOutputFile(String path) {
      return Files.localOutput(file(path));
    }

    @Override
    public void deleteFile(String path) {
      throw new UnsupportedOperationException("the judge deletes nothing");
    }
  }
}
