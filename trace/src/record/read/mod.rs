//! Reading of recordings and rings: complete, truncated or damaged.

mod analyse;
mod missing;
mod open;
mod reader;
mod scan;

pub use analyse::analyse;
pub use missing::Missing;
pub use open::{BlockInfo, Recording};
pub use reader::Reader;
