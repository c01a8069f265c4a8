//! Messages between tokengap's own processes: `MessagePack`.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Encodes a message.
///
/// # Panics
///
/// Only if the type cannot be encoded at all.
pub fn encode_message(message: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec(message).expect("memory takes every message")
}

/// Decodes a message; `None` if the bytes are none. Their sender may have been taken over, so everything that [`encode_message`] does not
/// write is refused, such as further bytes.
pub fn decode_message<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let message: T = rmp_serde::from_slice(bytes).ok()?;
    (encode_message(&message) == bytes).then_some(message)
}

/// Encodes bytes, or a path, as one string of bytes instead of a list of numbers.
pub mod byte_string {
    use std::ffi::OsString;
    use std::fmt;
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    use std::path::PathBuf;

    use serde::de::Visitor;
    use serde::{Deserializer, Serializer};

    /// A value that is a string of bytes.
    pub trait ByteString {
        /// The bytes of the value.
        fn as_byte_string(&self) -> &[u8];
        /// The value with these bytes.
        fn from_byte_string(bytes: &[u8]) -> Self;
    }

    impl ByteString for Vec<u8> {
        fn as_byte_string(&self) -> &[u8] {
            self
        }

        fn from_byte_string(bytes: &[u8]) -> Self {
            bytes.to_vec()
        }
    }

    impl ByteString for PathBuf {
        fn as_byte_string(&self) -> &[u8] {
            self.as_os_str().as_bytes()
        }

        fn from_byte_string(bytes: &[u8]) -> Self {
            OsString::from_vec(bytes.to_vec()).into()
        }
    }

    /// Encodes the value.
    pub fn serialize<S: Serializer>(value: &impl ByteString, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(value.as_byte_string())
    }

    /// Decodes a value.
    pub fn deserialize<'de, D: Deserializer<'de>, T: ByteString>(deserializer: D) -> Result<T, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = Vec<u8>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string of bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Self::Value, E> {
                Ok(bytes.to_vec())
            }
        }

        deserializer.deserialize_bytes(Bytes).map(|bytes| T::from_byte_string(&bytes))
    }
}
