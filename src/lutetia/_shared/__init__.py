"""What several parts share: whole folders, self-contained pages, compiled loops. Not part of the public interface."""
