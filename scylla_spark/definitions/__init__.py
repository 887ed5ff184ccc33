"""The models of all that people define: one per noun, shared by settings, Python, files, commands and the HTTP API."""
