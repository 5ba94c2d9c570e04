"""The journal: records to OTLP JSON lines and back, one hash-chained file per writing process."""
