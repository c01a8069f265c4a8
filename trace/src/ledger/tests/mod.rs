//! Requests from their first chunk to their end, over several hops.

mod lifecycle;
mod predictions;
