"""Pure: rows in, findings and verdict out. Its time is the newest row."""
