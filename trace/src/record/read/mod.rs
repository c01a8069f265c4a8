//! Reading of recordings and rings: complete, truncated or damaged.

mod analyse;
mod open;
mod reader;
mod scan;

pub use analyse::analyse;
pub use open::{BlockInfo, Missing, Recording};
pub use reader::Reader;
