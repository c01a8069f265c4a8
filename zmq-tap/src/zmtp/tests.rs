//! The scanner against streams built from real messages.
