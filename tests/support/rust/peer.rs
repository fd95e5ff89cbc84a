//! Appends rows with iceberg-rust: `peer METADATA FIRST END PART` writes ids from FIRST to below END, all in one part, under
//! the default spec of the table in a metadata file, and prints the location of the new metadata file.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{Int64Array, RecordBatch, StringArray};
use iceberg::arrow::{schema_to_arrow_schema, RecordBatchPartitionSplitter};
use iceberg::io::LocalFsStorageFactory;
use iceberg::memory::{MemoryCatalogBuilder, MEMORY_CATALOG_WAREHOUSE};
use iceberg::spec::DataFileFormat;
use iceberg::transaction::{ApplyTransactionAction, Transaction};
use iceberg::writer::base_writer::data_file_writer::DataFileWriterBuilder;
use iceberg::writer::file_writer::location_generator::{DefaultFileNameGenerator, DefaultLocationGenerator};
use iceberg::writer::file_writer::rolling_writer::RollingFileWriterBuilder;
use iceberg::writer::file_writer::ParquetWriterBuilder;
use iceberg::writer::partitioning::fanout_writer::FanoutWriter;
use iceberg::writer::partitioning::PartitioningWriter;
use iceberg::{Catalog, CatalogBuilder, NamespaceIdent, TableIdent};
use parquet::file::properties::WriterProperties;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given: Vec<String> = std::env::args().collect();
    let (first, end): (i64, i64) = (given[2].parse()?, given[3].parse()?);
    let warehouse = HashMap::from([(MEMORY_CATALOG_WAREHOUSE.to_string(), "file:///tmp".to_string())]);
    let factory = Arc::new(LocalFsStorageFactory);
    let catalog = MemoryCatalogBuilder::default().with_storage_factory(factory).load("peer", warehouse).await?;
    catalog.create_namespace(&NamespaceIdent::new("db".to_string()), HashMap::new()).await?;
    let name = TableIdent::from_strs(["db", "t"])?;
    let table = catalog.register_table(&name, given[1].clone()).await?;

    let metadata = table.metadata();
    let schema = metadata.current_schema().clone();
    let rows = RecordBatch::try_new(
        Arc::new(schema_to_arrow_schema(&schema)?),
        vec![
            Arc::new(Int64Array::from_iter_values(first..end)),
            Arc::new(StringArray::from_iter_values((first..end).map(|_| &given[4]))),
        ],
    )?;
    let files = DefaultFileNameGenerator::new(format!("rust-{first}"), None, DataFileFormat::Parquet);
    let parquet = ParquetWriterBuilder::new(WriterProperties::default(), schema.clone());
    let locations = DefaultLocationGenerator::new(metadata)?;
    let rolling =
        RollingFileWriterBuilder::new_with_default_file_size(parquet, table.file_io().clone(), locations, files);
    let mut writer = FanoutWriter::new(DataFileWriterBuilder::new(rolling));
    let splitter =
        RecordBatchPartitionSplitter::try_new_with_computed_values(schema, metadata.default_partition_spec().clone())?;
    for (key, part) in splitter.split(&rows)? {
        writer.write(key, part).await?;
    }
    let written = writer.close().await?;
    let transaction = Transaction::new(&table);
    let append = transaction.fast_append().add_data_files(written);
    let committed = append.apply(transaction)?.commit(&catalog).await?;
    println!("{}", committed.metadata_location().unwrap_or_default());
    Ok(())
}
