"""The machine: processes, files, Java, jars, sessions and the embedded broker."""
