"""Images in the formats that people have: tables, folders, Parquet, Hugging Face, WebDataset."""
