//! Macros that append to a `String`. Writing to one cannot fail, so they return nothing.

/// Appends formatted text.
macro_rules! append {
    ($text:expr, $($format:tt)+) => {{
        use std::fmt::Write as _;
        let _ = write!($text, $($format)+);
    }};
}

/// Appends formatted text and a line end.
macro_rules! append_line {
    ($text:expr $(, $($format:tt)+)?) => {{
        use std::fmt::Write as _;
        let _ = writeln!($text $(, $($format)+)?);
    }};
}
