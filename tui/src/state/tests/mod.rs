//! Tests of the screen's state as a whole, and the small runs that they and other tests use.

pub(crate) mod agreement;
mod recent_figures;
pub(crate) mod scene;
