// Reads and changes a table of a SQLite catalog with iceberg-rust: peer DATABASE WAREHOUSE NAMESPACE TABLE read|append [ID=PART]...
use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, RecordBatch, StringArray};
use futures::TryStreamExt;
use iceberg::arrow::{RecordBatchPartitionSplitter, schema_to_arrow_schema};
use iceberg::io::LocalFsStorageFactory;
use iceberg::spec::DataFileFormat;
use iceberg::transaction::{ApplyTransactionAction, Transaction};
use iceberg::writer::base_writer::data_file_writer::DataFileWriterBuilder;
use iceberg::writer::file_writer::ParquetWriterBuilder;
use iceberg::writer::file_writer::location_generator::{DefaultFileNameGenerator, DefaultLocationGenerator};
use iceberg::writer::file_writer::rolling_writer::RollingFileWriterBuilder;
use iceberg::writer::partitioning::PartitioningWriter;
use iceberg::writer::partitioning::fanout_writer::FanoutWriter;
use iceberg::{Catalog, CatalogBuilder, TableIdent};
use iceberg_catalog_sql::{SqlBindStyle, SqlCatalogBuilder};
use parquet::file::properties::WriterProperties;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let catalog = SqlCatalogBuilder::default()
        .uri(format!("sqlite:{}", arguments[1]))
        .warehouse_location(&arguments[2])
        .sql_bind_style(SqlBindStyle::QMark)
        .with_storage_factory(Arc::new(LocalFsStorageFactory))
        .load("local", HashMap::new())
        .await?;
    let table = catalog.load_table(&TableIdent::from_strs([&arguments[3], &arguments[4]])?).await?;
    if arguments[5] == "read" {
        let batches: Vec<RecordBatch> =
            table.scan().select(["id", "part"]).build()?.to_arrow().await?.try_collect().await?;
        for batch in batches {
            let ids = batch.column(0).as_primitive::<Int64Type>();
            let parts = batch.column(1).as_string::<i32>();
            for row in 0..batch.num_rows() {
                println!("{} {}", ids.value(row), parts.value(row));
            }
        }
        return Ok(());
    }
    let rows: Vec<(i64, &str)> = arguments[6..]
        .iter()
        .map(|row| row.split_once('=').expect("ID=PART"))
        .map(|(id, part)| (id.parse().expect("a number"), part))
        .collect();
    let metadata = table.metadata();
    let schema = metadata.current_schema().clone();
    let batch = RecordBatch::try_new(
        Arc::new(schema_to_arrow_schema(&schema)?),
        vec![
            Arc::new(rows.iter().map(|row| row.0).collect::<Int64Array>()),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.1))),
        ],
    )?;
    let files = RollingFileWriterBuilder::new_with_default_file_size(
        ParquetWriterBuilder::new(WriterProperties::default(), schema.clone()),
        table.file_io().clone(),
        DefaultLocationGenerator::new(metadata)?,
        DefaultFileNameGenerator::new(format!("rust-{}", std::process::id()), None, DataFileFormat::Parquet),
    );
    let mut writer = FanoutWriter::new(DataFileWriterBuilder::new(files));
    let splitter = RecordBatchPartitionSplitter::try_new_with_computed_values(
        schema,
        metadata.default_partition_spec().clone(),
    )?;
    for (key, part) in splitter.split(&batch)? {
        writer.write(key, part).await?;
    }
    let transaction = Transaction::new(&table);
    let append = transaction.fast_append().add_data_files(writer.close().await?);
    append.apply(transaction)?.commit(&catalog).await?;
    Ok(())
}
