"""A stub that is fast, or slow by measure: `stub`. What it speaks: `s3`, `gcs`, `azure`."""
