//! Incremental frame scanner for ZMTP streams. No I/O.
