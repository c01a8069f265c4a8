//! The state of a run as bytes: msgpack with named fields, packed with zstd.

use serde::Serialize;
use serde::de::DeserializeOwned;
use trace::Analysis;

use crate::cost;

/// Largest unpacked image in bytes. The ledger's default limits keep the state far below it.
const MAX_BYTES: usize = 256 << 20;
/// Largest estimate of the memory that a decoded image takes.
const MAX_DECODED: usize = 1 << 30;

/// Reasons why an image cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The image exceeds the size limit.
    #[error("the state is {0} bytes, above the limit of {MAX_BYTES}: lower --max-live or --max-finished at the source")]
    TooLarge(usize),
    /// The source sent no image because its state is too large.
    #[error("the source sent no state because it exceeds the size limit")]
    None,
    /// The state cannot be serialized.
    #[error("cannot encode the state: {0}")]
    Write(#[from] rmp_serde::encode::Error),
    /// The image cannot be decompressed.
    #[error("cannot decompress the state: {0}")]
    Unpack(#[from] std::io::Error),
    /// The image does not match this version's format.
    #[error("the state is from another version: {0}")]
    Read(#[from] rmp_serde::decode::Error),
    /// The parts of the state are inconsistent.
    #[error("the state is inconsistent")]
    Inconsistent,
}

/// Serialized state, not yet compressed.
#[derive(Debug)]
pub struct Image(pub(crate) Vec<u8>);

impl Image {
    /// Serializes any state, such as the analysis or the screen's history.
    pub fn of(state: &impl Serialize) -> Result<Self, ImageError> {
        let bytes = rmp_serde::to_vec_named(state)?;
        if bytes.len() > MAX_BYTES {
            return Err(ImageError::TooLarge(bytes.len()));
        }
        Ok(Self(bytes))
    }

    /// Compresses the image for sending.
    pub fn pack(&self) -> Result<Vec<u8>, ImageError> {
        Ok(zstd::bulk::compress(&self.0, 1)?)
    }

    /// Decompresses and deserializes an image.
    pub fn unpack<T: DeserializeOwned>(packed: &[u8]) -> Result<T, ImageError> {
        let size = zstd::zstd_safe::get_frame_content_size(packed).ok().flatten();
        let size = size.ok_or(ImageError::Inconsistent)? as usize;
        if size > MAX_BYTES {
            return Err(ImageError::TooLarge(size));
        }
        let bytes = zstd::bulk::decompress(packed, size)?;
        cost::check(&bytes, MAX_DECODED)?;
        Ok(rmp_serde::from_slice(&bytes)?)
    }

    /// Restores an analysis and checks its consistency.
    pub fn analysis(packed: &[u8]) -> Result<Analysis, ImageError> {
        let analysis: Analysis = Self::unpack(packed)?;
        if analysis.is_sound() { Ok(analysis) } else { Err(ImageError::Inconsistent) }
    }
}
