//! Messages about problems.

use std::fmt;

/// Message to the user about a problem, which it marks by a `!` at its front.
pub(crate) fn problem_message(problem: fmt::Arguments<'_>) -> String {
    format!("! {problem}")
}
