//! Printing to standard error. File names and received text may be hostile, so terminal control sequences are removed.

/// Like [`eprint!`], without control characters and bidirectional or invisible characters.
macro_rules! err {
    ($($words:tt)*) => {
        ::std::eprint!("{}", ::trace::report::hostile::lines(&::std::format!($($words)*)))
    };
}

/// Like [`eprintln!`], without control characters and bidirectional or invisible characters.
macro_rules! errln {
    ($($words:tt)*) => {
        ::std::eprintln!("{}", ::trace::report::hostile::lines(&::std::format!($($words)*)))
    };
}
