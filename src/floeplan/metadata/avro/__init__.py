"""The avro package."""
