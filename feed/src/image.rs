//! The state of a run as bytes: msgpack with named fields, packed with zstd.

use serde::Serialize;
use serde::de::DeserializeOwned;
use trace::Analysis;

/// An image that unpacks to more is not made, and not taken. The ledger's default limits stay far below it.
const MOST: usize = 256 << 20;

/// Why there is no image, or none that can be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// It is larger than an image may be.
    #[error("the state takes {0} bytes and an image at most {MOST}: lower --max-live or --max-finished at the source")]
    TooLarge(usize),
    /// The source has sent none: there it is too large.
    #[error("the source sent no state: it is too large for it")]
    None,
    /// It cannot be written.
    #[error("the state cannot be written: {0}")]
    Write(#[from] rmp_serde::encode::Error),
    /// It does not unpack.
    #[error("the state cannot be unpacked: {0}")]
    Unpack(#[from] std::io::Error),
    /// It is not of this version.
    #[error("the state is not one of this version: {0}")]
    Read(#[from] rmp_serde::decode::Error),
    /// Its parts do not belong together.
    #[error("the state's parts do not belong together")]
    Unsound,
}

/// State on its way, not packed yet.
#[derive(Debug)]
pub struct Image(Vec<u8>);

impl Image {
    /// Of anything that is kept beside the analysis.
    pub fn of(state: &impl Serialize) -> Result<Self, ImageError> {
        let bytes = rmp_serde::to_vec_named(state)?;
        if bytes.len() > MOST {
            return Err(ImageError::TooLarge(bytes.len()));
        }
        Ok(Self(bytes))
    }

    /// Of bytes that need not be a state.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn unpacked(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// As it is sent.
    pub fn pack(&self) -> Result<Vec<u8>, ImageError> {
        Ok(zstd::bulk::compress(&self.0, 1)?)
    }

    /// What was packed.
    pub fn unpack<T: DeserializeOwned>(packed: &[u8]) -> Result<T, ImageError> {
        let said = zstd::zstd_safe::get_frame_content_size(packed).ok().flatten();
        let said = said.ok_or(ImageError::Unsound)? as usize;
        if said > MOST {
            return Err(ImageError::TooLarge(said));
        }
        let bytes = zstd::bulk::decompress(packed, said)?;
        Ok(rmp_serde::from_slice(&bytes)?)
    }

    /// The state of a run, if it is one.
    pub fn analysis(packed: &[u8]) -> Result<Analysis, ImageError> {
        let analysis: Analysis = Self::unpack(packed)?;
        if analysis.is_sound() {
            Ok(analysis)
        } else {
            Err(ImageError::Unsound)
        }
    }
}
