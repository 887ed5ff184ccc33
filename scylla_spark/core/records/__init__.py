"""The record formats of the topics, from bytes to typed records and back: read strictly and totally, and versioned."""
