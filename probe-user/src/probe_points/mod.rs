//! Selection of the instructions to probe in a library.

mod find;
mod image;
mod machine_state;
mod method;

use std::collections::HashMap;
use std::sync::Arc;

use foreign::RegularFile;
use serde::{Deserialize, Serialize};

pub(crate) use find::{ReceivedPoint, SocketPoint};
pub(crate) use image::ImageError;
use image::{ExportedSymbol, Image};
use machine_state::MachineCode;

use crate::discover::ReadError;

/// Maximum file size. libzmq and libssl have about 1 MB, libc 2 MB, and an extension module with libzmq linked in a few.
const MAX_FILE_BYTES: usize = 64 << 20;
/// Maximum number of cached libraries; a cached file is read once for all processes that map it.
pub(crate) const MAX_CACHED: usize = 64;

/// Functions of libzmq, libc and OpenSSL that are probed.
pub(crate) const FUNCTIONS: [&str; 14] = [
    "zmq_msg_send",
    "zmq_msg_recv",
    "zmq_send",
    "zmq_send_const",
    "zmq_recv",
    "zmq_getsockopt",
    "epoll_wait",
    "epoll_pwait",
    "poll",
    "accept",
    "accept4",
    "SSL_write",
    "SSL_write_ex",
    "SSL_free",
];

/// Functions or method that a library is searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sought {
    /// The exported functions of libzmq, libc and OpenSSL.
    Functions,
    /// The only method of a `CPython` extension with one of these names.
    Method(&'static [&'static str]),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbePointsError {
    #[error("cannot read its file: {0}")]
    Read(#[source] ReadError),
    #[error("cannot analyse its code: {0}")]
    Image(#[from] ImageError),
    #[error("its file is larger than {MAX_FILE_BYTES} bytes")]
    Large,
    #[error("it does not export {symbol}")]
    Missing { symbol: &'static str },
    #[error("it has no method {}", methods.join(" or "))]
    NoMethod { methods: &'static [&'static str] },
}

/// Probe points in one library, as offsets in its file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProbePoints {
    /// Entry point of each function.
    pub(crate) functions: [Option<u64>; FUNCTIONS.len()],
    /// Point inside `zmq_msg_recv`; `None` if the compiled code is not understood.
    pub(crate) received: Option<ReceivedPoint>,
    /// Point inside the function that `zmq_msg_send` calls; `None` as above.
    pub(crate) refused: Option<SocketPoint>,
    /// Point inside the function that `zmq_getsockopt` calls; `None` as above.
    pub(crate) option_request: Option<SocketPoint>,
    /// Point inside the function that `zmq_msg_recv` calls; `None` as above.
    pub(crate) waits: Option<SocketPoint>,
    /// Entry of the function that both writes of OpenSSL call, with the parameters of `SSL_write_ex`; `None` as above.
    pub(crate) tls_write: Option<u64>,
    /// Entry of the method that passes messages to a server inside the process; `None` in other libraries.
    pub(crate) method: Option<u64>,
}

impl ProbePoints {
    /// Offset to probe for the entry or the return of `symbol`. An error if the library does not have it.
    pub(crate) fn entry_offset_of(&self, symbol: &'static str) -> Result<u64, ProbePointsError> {
        let index = FUNCTIONS.iter().position(|name| *name == symbol);
        let entry = index.and_then(|index| self.functions[index]);
        entry.ok_or(ProbePointsError::Missing { symbol })
    }

    /// Finds the probe points in the content of a library's file.
    pub(crate) fn find_in_image(sought: Sought, image: &[u8]) -> Result<Self, ProbePointsError> {
        match sought {
            Sought::Functions => Self::find_in_exported_functions(image),
            Sought::Method(methods) => {
                let found =
                    method::find_method_offset(image, methods)?.ok_or(ProbePointsError::NoMethod { methods })?;
                Ok(Self { method: Some(found), ..Self::default() })
            }
        }
    }

    /// Finds the probe points in the functions that a library exports. These are the entry of each probed function, and in some functions a
    /// point inside.
    fn find_in_exported_functions(image: &[u8]) -> Result<Self, ProbePointsError> {
        let image = Image::parse(image)?;
        let exports = image.exports(&FUNCTIONS)?;
        let mut probe_points = Self::default();
        let mut tls_write = None;
        let mut tls_write_ex = None;
        for ExportedSymbol { name, address } in exports {
            let Some(index) = FUNCTIONS.iter().position(|function| *function == name) else { continue };
            // A symbol may have several versions, of which the first counts.
            if probe_points.functions[index].is_some() {
                continue;
            }
            let Some(segment) = find_code_segment(&image, address) else { continue };
            // Only the code of x86-64 is decoded. Elsewhere the first instruction of the function is probed.
            if !cfg!(target_arch = "x86_64") {
                probe_points.functions[index] = Some(segment.file_offset_of(address));
                continue;
            }
            let entry_address = find::find_entry_probe_address(segment.code, address);
            probe_points.functions[index] = Some(segment.file_offset_of(entry_address));
            probe_points.find_points_inside_function(name, address, &segment);
            match name {
                "SSL_write" => tls_write = Some(address),
                "SSL_write_ex" => tls_write_ex = Some(address),
                _ => {}
            }
        }
        if let (Some(write), Some(write_ex)) = (tls_write, tls_write_ex) {
            probe_points.tls_write = find_common_tls_write_offset(&image, write, write_ex);
        }
        Ok(probe_points)
    }

    /// Finds the probe points inside the function of libzmq at `address`, which is in `segment`. Other functions have none.
    fn find_points_inside_function(&mut self, function: &str, address: u64, segment: &CodeSegment<'_>) {
        let code = segment.code;
        match function {
            "zmq_msg_recv" => {
                let received = find::find_received_point(code, address);
                self.received = received.map(|found| ReceivedPoint { at: segment.file_offset_of(found.at), ..found });
                self.waits = find::find_wait_point(code, address).map(|found| segment.in_file(found));
            }
            "zmq_msg_send" => {
                self.refused = find::find_refused_point(code, address).map(|found| segment.in_file(found));
            }
            "zmq_getsockopt" => {
                let request = find::find_option_request_point(code, address);
                self.option_request = request.map(|found| segment.in_file(found));
            }
            _ => {}
        }
    }
}

/// File offset of the entry of the function that both writes of OpenSSL call, which are at these addresses. `None` if there is none.
fn find_common_tls_write_offset(image: &Image<'_>, write_address: u64, write_ex_address: u64) -> Option<u64> {
    let segment = find_code_segment(image, write_ex_address)?;
    let inner = find::find_inner_tls_write_address(segment.code, write_address, write_ex_address)?;
    Some(segment.file_offset_of(find::find_entry_probe_address(segment.code, inner)))
}

/// A loaded segment of a library with code.
struct CodeSegment<'a> {
    code: MachineCode<'a>,
    /// Offset of its first byte in the file.
    file_offset: u64,
}

impl CodeSegment<'_> {
    /// Offset in the file of an address in this segment.
    fn file_offset_of(&self, address: u64) -> u64 {
        address.wrapping_sub(self.code.address).wrapping_add(self.file_offset)
    }

    /// The point with its offset in the file instead of its address.
    fn in_file(&self, point: SocketPoint) -> SocketPoint {
        SocketPoint { at: self.file_offset_of(point.at), ..point }
    }
}

/// The segment at this address, as machine code. `None` if no segment has the address.
fn find_code_segment<'a>(image: &Image<'a>, address: u64) -> Option<CodeSegment<'a>> {
    let segment = image.segments.iter().find(|segment| segment.contains(address))?;
    let code = MachineCode { bytes: segment.bytes, address: segment.address };
    Some(CodeSegment { code, file_offset: segment.offset })
}

/// Reads a library's file of at most [`MAX_FILE_BYTES`] bytes.
pub(crate) fn read_library_file(file: &RegularFile) -> Result<Vec<u8>, ProbePointsError> {
    file.read(MAX_FILE_BYTES).map_err(|source| match source {
        ReadError::TooLong(_) => ProbePointsError::Large,
        source => ProbePointsError::Read(source),
    })
}

/// Cache of libraries that this process has analysed, by device, inode and the functions searched for.
#[derive(Debug, Default)]
pub(crate) struct ProbePointCache {
    known: HashMap<ProbePointKey, Arc<ProbePoints>>,
}

/// A library's file, and what was sought in it.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ProbePointKey {
    device: u64,
    inode: u64,
    sought: Sought,
}

impl ProbePointCache {
    /// Finds the probe points of an open library, and remembers them.
    pub(crate) fn find_in_library(
        &mut self,
        sought: Sought,
        file: &RegularFile,
    ) -> Result<Arc<ProbePoints>, ProbePointsError> {
        let key = ProbePointKey { device: file.device, inode: file.inode, sought };
        if let Some(known) = self.known.get(&key) {
            return Ok(Arc::clone(known));
        }
        let probe_points = Arc::new(ProbePoints::find_in_image(sought, &read_library_file(file)?)?);
        // At the limit, all libraries are forgotten. They are then analysed again, which costs time only.
        if self.known.len() == MAX_CACHED {
            self.known.clear();
        }
        self.known.insert(key, Arc::clone(&probe_points));
        Ok(probe_points)
    }
}

#[cfg(test)]
mod tests;
