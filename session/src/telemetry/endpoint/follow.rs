//! Sends the stream of a run to one client.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::Bytes;
use outputs::export::{Export, Format, Opening, Options};
use recording::{BlockReader, Record, RecordingHeader, StreamSection, StreamSplitter};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;
use tokio::time::{sleep, timeout};
use trace::engine::Engines;
use trace::{Config, ReportInput};

use super::store::{SectionCursor, StreamStep};
use crate::telemetry::endpoint_counts::EndpointCounts;
use crate::telemetry::served_path::ServedPath;

pub(super) struct StreamClient {
    pub(super) path: ServedPath,
    pub(super) cursor: SectionCursor,
    /// Parts of the response. It holds few, so that a client that does not read is noticed.
    pub(super) parts: Sender<Bytes>,
    /// Set when the response is complete.
    pub(super) is_complete: Arc<AtomicBool>,
    /// Closes the connection.
    pub(super) close: Arc<Notify>,
    pub(super) counts: Arc<EndpointCounts>,
    /// Maximum time without reading.
    pub(super) read_timeout: Duration,
}

/// Why a stream stops.
enum StreamEnd {
    /// The run has ended, and the client has everything.
    Complete,
    /// The client has disconnected.
    Gone,
    /// The client reads too slowly.
    Slow,
    /// The recording cannot be converted.
    Failed(String),
}

impl StreamClient {
    /// Sends the recording until the run ends, or until the client disconnects or is too slow. Then ends the response.
    pub(super) async fn send_recording(mut self) {
        let end = loop {
            match self.cursor.next().await {
                StreamStep::Section(section) => {
                    if let Err(end) = self.queue_part_for_client(section).await {
                        break end;
                    }
                }
                StreamStep::Behind => break StreamEnd::Slow,
                StreamStep::Ended => break StreamEnd::Complete,
            }
        };
        self.end_response(end).await;
    }

    /// Sends the events of the run as JSON lines ([`Format::Events`]), on a thread of its own.
    pub(super) fn send_events(self, engines: Engines) {
        let runtime = Handle::current();
        tokio::task::spawn_blocking(move || {
            let end = self.convert_and_send_events(engines, &runtime);
            runtime.block_on(self.end_response(end));
        });
    }

    /// Converts the sections (blocks of the recording) of the run to JSON lines and sends them, until the run ends or the client does not
    /// keep up. Has a thread of its own, because it blocks.
    fn convert_and_send_events(&self, engines: Engines, runtime: &Handle) -> StreamEnd {
        let mut cursor = self.cursor.clone();
        // The opening is what the export states before its first event. A copy of the cursor reads ahead to collect it, so that `cursor`
        // itself stays at the start for the conversion.
        let opening = match runtime.block_on(read_export_opening(cursor.clone())) {
            Ok(opening) => opening,
            Err(end) => return end,
        };
        let lines = LineBuffer::default();
        let mut converter = EventConverter::new(opening, engines, lines.clone());
        loop {
            if let Err(end) = converter.convert_step(runtime.block_on(cursor.next())) {
                return end;
            }
            let text = lines.take_lines();
            if !text.is_empty()
                && let Err(end) = runtime.block_on(self.queue_part_for_client(text.into()))
            {
                return end;
            }
        }
    }

    /// Queues a part for the client. An error says why the stream has to end.
    async fn queue_part_for_client(&self, part: Bytes) -> Result<(), StreamEnd> {
        match timeout(self.read_timeout, self.parts.send(part)).await {
            Ok(Ok(())) => Ok(()),
            // The connection has dropped the other end of the queue.
            Ok(Err(_)) => Err(StreamEnd::Gone),
            // The time is over.
            Err(_) => Err(StreamEnd::Slow),
        }
    }

    /// Ends the response, which is complete only if the client got the whole stream. Then closes the connection.
    async fn end_response(self, end: StreamEnd) {
        match end {
            StreamEnd::Complete => {
                self.is_complete.store(true, Ordering::Release);
                drop(self.parts);
                // Gives the client time to read the rest before the connection is closed.
                sleep(self.read_timeout).await;
            }
            // Not counted: the client has disconnected by itself.
            StreamEnd::Gone => {}
            StreamEnd::Slow => self.counts.count_slow(self.path),
            StreamEnd::Failed(error) => tracing::warn!("metrics: {} failed: {error}", self.path.name()),
        }
        self.close.notify_one();
    }
}

/// Collects the opening of the export: what it states before its first event. Reads ahead in the sections that the store keeps. If these
/// contain no event, waits for the first one. `Err` says why the stream ends.
async fn read_export_opening(mut ahead: SectionCursor) -> Result<Opening, StreamEnd> {
    let mut reader = OpeningReader::default();
    while !reader.is_complete {
        // Until the first event the opening is unknown, so this waits for further sections. After that event, it reads only those that
        // are already kept.
        let step = if reader.has_event { ahead.try_next() } else { Some(ahead.next().await) };
        match step {
            Some(StreamStep::Section(section)) => {
                reader.read_bytes(&section).map_err(|error| StreamEnd::Failed(error.to_string()))?;
            }
            Some(StreamStep::Behind) => return Err(StreamEnd::Slow),
            // The run has ended, or no further section is kept yet.
            Some(StreamStep::Ended) | None => break,
        }
    }
    // A run that ended before its header has nothing to convert.
    reader.opening.ok_or(StreamEnd::Complete)
}

/// Collects the opening of an export from the stream.
#[derive(Default)]
struct OpeningReader {
    splitter: StreamSplitter,
    blocks: BlockReader,
    /// `None` before the header of the recording.
    opening: Option<Opening>,
    has_event: bool,
    /// The events have shown all that the opening contains.
    is_complete: bool,
}

impl OpeningReader {
    /// Adds the next bytes of the stream, and reads the sections that they complete.
    fn read_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.splitter.add_received_bytes(bytes);
        while let Some(section) = self.splitter.next_section().map_err(io::Error::other)? {
            match section {
                StreamSection::Header { header, .. } => self.opening = Some(opening_of(&header)),
                StreamSection::Block(block) => self.read_block(&block)?,
                // Neither has events.
                StreamSection::Status(_) | StreamSection::End(_) => {}
            }
        }
        Ok(())
    }

    /// Adds the events of a block to the opening. Sets `is_complete` once the opening needs no further ones.
    fn read_block(&mut self, block: &[u8]) -> io::Result<()> {
        let Self { blocks, opening, has_event, is_complete, .. } = self;
        // The header, which creates the opening, comes before all blocks.
        let Some(opening) = opening else { return Ok(()) };
        let read = blocks.read_block(block, &mut |record| {
            if let Record::Event(event) = &record {
                *has_event = true;
                let needs_more = opening.read_if_in_opening(event);
                *is_complete |= !needs_more;
            }
        });
        read.map_err(io::Error::other)
    }
}

fn opening_of(header: &RecordingHeader) -> Opening {
    Opening::new(&header.source, &header.tokengap, header.anchor)
}

/// Converts the sections of a recording to lines of events.
struct EventConverter {
    opening: Opening,
    engines: Engines,
    lines: LineBuffer,
    splitter: StreamSplitter,
    reader: BlockReader,
    /// `None` until the header was read.
    export: Option<StreamExport>,
}

/// Conversion of the stream of a source.
struct StreamExport {
    /// Name of the source.
    source: String,
    export: Export<'static>,
}

/// Passes a record of the stream to the exporter.
fn export_record(export: &mut Export<'static>, record: Record<'_>) -> io::Result<()> {
    match record {
        Record::Event(event) => export.event(&event),
        Record::Tick(now) => export.tick(now),
        Record::Anchor(anchor) => {
            export.anchor(anchor);
            Ok(())
        }
        // In a stream, the end of the run is a section of its own instead.
        Record::Closing(_) => Ok(()),
    }
}

impl EventConverter {
    /// Creates a converter that writes to `lines`. `opening` is what the export states before its first event.
    fn new(opening: Opening, engines: Engines, lines: LineBuffer) -> Self {
        Self {
            opening,
            engines,
            lines,
            splitter: StreamSplitter::default(),
            reader: BlockReader::default(),
            export: None,
        }
    }

    /// Converts the next step of the stream. `Err` if the stream stops there.
    fn convert_step(&mut self, step: StreamStep) -> Result<(), StreamEnd> {
        match step {
            StreamStep::Section(section) => {
                self.convert_bytes(&section).map_err(|error| StreamEnd::Failed(error.to_string()))
            }
            StreamStep::Behind => Err(StreamEnd::Slow),
            StreamStep::Ended => Err(StreamEnd::Complete),
        }
    }

    /// Adds the next bytes of the stream, and converts the sections that they complete. The exporter writes the lines to the line buffer.
    fn convert_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.splitter.add_received_bytes(bytes);
        while let Some(section) = self.splitter.next_section().map_err(io::Error::other)? {
            match section {
                StreamSection::Header { header, .. } => self.begin_export(*header)?,
                StreamSection::Block(block) => self.convert_block(&block)?,
                StreamSection::End(closing) => self.finish_export(*closing)?,
                // The report as of some moment is no event.
                StreamSection::Status(_) => {}
            }
        }
        Ok(())
    }

    /// Begins the export of the run that the header describes.
    fn begin_export(&mut self, header: RecordingHeader) -> io::Result<()> {
        // The configuration in a recording lacks the facts about engines.
        let config = Config { engines: self.engines, ..header.config };
        let lines = self.lines.clone();
        let export = Export::new(Format::Events, Options::default(), config, &self.opening, lines)?;
        self.export = Some(StreamExport { source: header.source, export });
        Ok(())
    }

    /// Ends the export with the last state of the source. Does nothing if the export has not begun. The name of the source comes from the
    /// header, because `closing` does not have it.
    fn finish_export(&mut self, closing: ReportInput) -> io::Result<()> {
        let Some(StreamExport { source, export }) = self.export.take() else { return Ok(()) };
        export.finish(&ReportInput { kind: source, ..closing })?;
        Ok(())
    }

    /// Converts the records of a block, which follows the header.
    fn convert_block(&mut self, block: &[u8]) -> io::Result<()> {
        // There is no export before the header, and none after the end.
        let Some(StreamExport { export, .. }) = &mut self.export else { return Ok(()) };
        // Keeps the first error of the exporter. The callback cannot stop the reader, which goes on with the next record.
        let mut exported = Ok(());
        let read = self.reader.read_block(block, &mut |record| {
            let result = export_record(export, record);
            if exported.is_ok() {
                exported = result;
            }
        });
        read.map_err(io::Error::other)?;
        exported?;
        export.flush()
    }
}

/// Lines that were not sent yet.
#[derive(Clone, Default)]
struct LineBuffer {
    bytes: Rc<RefCell<Vec<u8>>>,
}

impl LineBuffer {
    /// Empties the buffer.
    fn take_lines(&self) -> Vec<u8> {
        self.bytes.take()
    }
}

impl Write for LineBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
