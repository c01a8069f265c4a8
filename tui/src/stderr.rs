//! Lines to standard error. File names, messages and what others sent may stand in them: nothing in them moves a terminal's cursor.

/// As [`eprint!`], without control characters and those that turn or hide text.
macro_rules! err {
    ($($words:tt)*) => {
        ::std::eprint!("{}", ::trace::report::hostile::lines(&::std::format!($($words)*)))
    };
}

/// As [`eprintln!`], without control characters and those that turn or hide text.
macro_rules! errln {
    ($($words:tt)*) => {
        ::std::eprintln!("{}", ::trace::report::hostile::lines(&::std::format!($($words)*)))
    };
}
