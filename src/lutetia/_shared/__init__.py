"""What several parts of the library use and none of them owns: pages, folders, compiled loops."""
