"""What all commands share: parsing and errors, directories written whole, provenance."""
