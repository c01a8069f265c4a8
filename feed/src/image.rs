//! The state of a run as bytes: msgpack with named fields, packed with zstd.

use serde::Serialize;
use serde::de::DeserializeOwned;
use trace::Analysis;

/// Largest unpacked image in bytes. The ledger's default limits keep the state far below it.
const MOST: usize = 256 << 20;

/// Reasons why an image cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The image exceeds the size limit.
    #[error("the state takes {0} bytes and an image at most {MOST}: lower --max-live or --max-finished at the source")]
    TooLarge(usize),
    /// The source sent no image because its state is too large.
    #[error("the source sent no state: it is too large for it")]
    None,
    /// The state cannot be serialized.
    #[error("the state cannot be written: {0}")]
    Write(#[from] rmp_serde::encode::Error),
    /// The image cannot be decompressed.
    #[error("the state cannot be unpacked: {0}")]
    Unpack(#[from] std::io::Error),
    /// The image does not match this version's format.
    #[error("the state is not one of this version: {0}")]
    Read(#[from] rmp_serde::decode::Error),
    /// The parts of the state are inconsistent.
    #[error("the state's parts do not belong together")]
    Unsound,
}

/// Serialized state, not yet compressed.
#[derive(Debug)]
pub struct Image(Vec<u8>);

impl Image {
    /// Serializes any state, such as the analysis or the screen's history.
    pub fn of(state: &impl Serialize) -> Result<Self, ImageError> {
        let bytes = rmp_serde::to_vec_named(state)?;
        if bytes.len() > MOST {
            return Err(ImageError::TooLarge(bytes.len()));
        }
        Ok(Self(bytes))
    }

    /// Wraps bytes that need not be a valid state.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn unpacked(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Compresses the image for sending.
    pub fn pack(&self) -> Result<Vec<u8>, ImageError> {
        Ok(zstd::bulk::compress(&self.0, 1)?)
    }

    /// Decompresses and deserializes an image.
    pub fn unpack<T: DeserializeOwned>(packed: &[u8]) -> Result<T, ImageError> {
        let said = zstd::zstd_safe::get_frame_content_size(packed).ok().flatten();
        let said = said.ok_or(ImageError::Unsound)? as usize;
        if said > MOST {
            return Err(ImageError::TooLarge(said));
        }
        let bytes = zstd::bulk::decompress(packed, said)?;
        Ok(rmp_serde::from_slice(&bytes)?)
    }

    /// Restores an analysis and checks its consistency.
    pub fn analysis(packed: &[u8]) -> Result<Analysis, ImageError> {
        let analysis: Analysis = Self::unpack(packed)?;
        if analysis.is_sound() {
            Ok(analysis)
        } else {
            Err(ImageError::Unsound)
        }
    }
}
