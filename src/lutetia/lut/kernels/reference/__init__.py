"""The definition of every kernel, in plain torch: short enough to read in one sitting."""
