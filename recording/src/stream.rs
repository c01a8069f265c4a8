//! A recording as a stream of bytes, for clients that follow a run: preamble, header, blocks, the state of the source about once a second,
//! and its end. It has no index. Saved to a file, it opens as a recording.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;
use trace::ReportInput;

use super::header::{EndReason, EndSection, RecordingHeader};
use super::section::{MAJOR, PREAMBLE_BYTES, Preamble, SECTION_HEADER_BYTES, Section, kind};
use super::write::{BlockPacker, UncompressedBlock, new_run_id, seal_section, write_preamble_and_header};

/// Maximum length of a section other than a block. Such sections are JSON and read as a whole.
const MAX_JSON_BYTES: u32 = 1 << 20;

/// Encodes the sections of a stream.
pub struct StreamPacker {
    packer: BlockPacker,
    header: RecordingHeader,
    run: u64,
    /// Number of the next block.
    seq: u64,
}

impl StreamPacker {
    /// Creates the packer of a run that starts now.
    pub fn new(header: RecordingHeader) -> io::Result<Self> {
        // The header, which `preamble_and_header` writes, has number 0.
        let first_block_seq = 1;
        Ok(Self { packer: BlockPacker::new()?, header, run: new_run_id(), seq: first_block_seq })
    }

    /// Encodes the preamble and the header, with which every stream begins.
    pub fn preamble_and_header(&self) -> io::Result<Vec<u8>> {
        let mut start = Vec::new();
        let is_ring = false;
        write_preamble_and_header(&mut start, &self.header, self.run, is_ring)?;
        Ok(start)
    }

    /// Compresses the next block of the stream. Returns its section: the header and the compressed block.
    pub fn pack_block(&mut self, block: &UncompressedBlock) -> io::Result<&[u8]> {
        let sealed = self.packer.pack_section(block, self.run, self.seq)?;
        self.seq += 1;
        Ok(sealed.bytes)
    }

    /// Encodes the source's own state, for reports of the run so far.
    pub fn pack_status(&self, status: &ReportInput) -> io::Result<Vec<u8>> {
        self.pack_json(kind::STATUS, status)
    }

    /// Encodes the end of the run.
    pub fn pack_end(&self, closing: &ReportInput) -> io::Result<Vec<u8>> {
        self.pack_json(kind::END, &EndSection { why: EndReason::Finished, dropped: 0, closing: Some(closing.clone()) })
    }

    /// Encodes a section with this content as JSON.
    fn pack_json(&self, kind: u8, content: &impl Serialize) -> io::Result<Vec<u8>> {
        let json = serde_json::to_vec(content)?;
        // Uses the number of the next block without advancing it, since a gap between the numbers of blocks means a missing block.
        let mut section =
            Section { kind, raw_bytes: json.len() as u32, run: self.run, seq: self.seq, ..Section::default() };
        let mut sealed = Vec::new();
        seal_section(&mut section, &json, &mut sealed);
        Ok(sealed)
    }
}

/// A section of a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamSection {
    /// The first section.
    Header {
        /// Id of the run: the same in all streams of a run, and in no other.
        run: u64,
        /// Metadata of the run.
        header: Box<RecordingHeader>,
    },
    /// A block for [`super::BlockReader`].
    Block(Vec<u8>),
    /// The source's own state.
    Status(Box<ReportInput>),
    /// The end of the run, with the source's last state.
    End(Box<ReportInput>),
}

/// Errors of reading a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Another protocol or content.
    #[error("it sends no tokengap recording; check the address")]
    NotARecording,
    /// Another major version of the format.
    #[error("its recording has format {major}.{minor}; this tokengap reads {MAJOR}.x: use the source's version")]
    OtherFormat {
        /// Major version of its format.
        major: u16,
        /// Minor version of its format.
        minor: u16,
    },
    /// Damaged bytes.
    #[error("its recording is damaged: {0}")]
    Damaged(String),
}

/// Splits the bytes of a stream into sections. Keeps at most one incomplete section and the bytes passed last.
#[derive(Debug, Default)]
pub struct StreamSplitter {
    bytes: Vec<u8>,
    /// Number of processed bytes at the front of `bytes`.
    processed_bytes: usize,
    has_preamble: bool,
    run: Option<u64>,
}

impl StreamSplitter {
    /// Adds received bytes, from which [`Self::next_section`] takes whole sections.
    pub fn add_received_bytes(&mut self, bytes: &[u8]) {
        // Processed bytes are removed here and not after each section, so that the rest moves once for each read.
        self.bytes.drain(..self.processed_bytes);
        self.processed_bytes = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete section; `None` if more bytes are needed. Sections of unknown kinds are skipped.
    pub fn next_section(&mut self) -> Result<Option<StreamSection>, StreamError> {
        if !self.has_preamble {
            let is_complete = self.read_preamble_if_complete()?;
            if !is_complete {
                return Ok(None);
            }
        }
        loop {
            let Some((head, rest)) = self.bytes[self.processed_bytes..].split_first_chunk::<SECTION_HEADER_BYTES>()
            else {
                return Ok(None);
            };
            let section = Section::parse(head).ok_or_else(|| damaged_stream("a section has no valid header"))?;
            if self.run.is_some_and(|run| section.run != run) {
                return Err(damaged_stream("a section belongs to another run"));
            }
            // The sender may be any program, and the section is kept until it is complete.
            if section.kind != kind::BLOCK && section.packed_bytes > MAX_JSON_BYTES {
                return Err(damaged_stream("a section is too long"));
            }
            let Some(payload) = rest.get(..section.packed_bytes as usize) else { return Ok(None) };
            if crc32fast::hash(payload) != section.crc {
                return Err(damaged_stream("a checksum does not match"));
            }
            let is_first = self.run.is_none();
            let parsed = parse_section(&section, head, payload, is_first)?;
            self.run = Some(section.run);
            self.processed_bytes += section.total_bytes() as usize;
            if parsed.is_some() {
                return Ok(parsed);
            }
        }
    }

    /// Reads the preamble, and remembers that it was read. Returns `false` if more bytes are needed.
    fn read_preamble_if_complete(&mut self) -> Result<bool, StreamError> {
        // Compared as far as received, so that another protocol is recognised from its first byte.
        if !self.bytes.is_empty() && !Preamble::has_magic(&self.bytes) {
            return Err(StreamError::NotARecording);
        }
        let Some(bytes) = self.bytes.first_chunk::<PREAMBLE_BYTES>() else { return Ok(false) };
        let Preamble { major, minor, .. } = Preamble::parse(bytes).ok_or(StreamError::NotARecording)?;
        if major != MAJOR {
            return Err(StreamError::OtherFormat { major, minor });
        }
        self.has_preamble = true;
        self.processed_bytes = PREAMBLE_BYTES;
        Ok(true)
    }
}

/// Parses a complete section of a stream. `head` is its header as received. `None` if its kind is unknown to this version.
fn parse_section(
    section: &Section,
    head: &[u8],
    payload: &[u8],
    is_first: bool,
) -> Result<Option<StreamSection>, StreamError> {
    if is_first {
        if section.kind != kind::HEADER {
            return Err(damaged_stream("it does not begin with a header"));
        }
        let header = Box::new(from_json(payload)?);
        return Ok(Some(StreamSection::Header { run: section.run, header }));
    }
    Ok(match section.kind {
        kind::BLOCK => Some(StreamSection::Block([head, payload].concat())),
        kind::STATUS => Some(StreamSection::Status(Box::new(from_json(payload)?))),
        kind::END => {
            let end: EndSection = from_json(payload)?;
            Some(StreamSection::End(Box::new(end.closing.unwrap_or_default())))
        }
        _ => None,
    })
}

/// Error of a stream that cannot be read any further.
fn damaged_stream(why: &str) -> StreamError {
    StreamError::Damaged(why.to_owned())
}

/// Content of a JSON section.
fn from_json<T: DeserializeOwned>(payload: &[u8]) -> Result<T, StreamError> {
    serde_json::from_slice(payload).map_err(|error| StreamError::Damaged(error.to_string()))
}
