//! Export of a recording.

use std::io::{self, Write};

use super::{Export, Format, Opening, Options};
use crate::Config;
use crate::engine::Engines;
use crate::record::{ReadError, Record, Recording};

/// Writes all of `recording`. Calls `progress` with the number of bytes processed, and for each unreadable part that is skipped.
pub fn recorded(
    recording: &Recording,
    engines: Engines,
    format: Format,
    options: Options,
    out: impl Write,
    progress: &mut dyn FnMut(u64, Option<&ReadError>),
) -> io::Result<()> {
    let header = recording.header();
    let opening = look_ahead(recording)?;
    let config = Config { engines, ..header.config };
    let mut export = Export::new(format, options, config, &opening, out)?;
    let mut reader = recording.reader();
    let mut done = reader.offset();
    loop {
        match reader.next() {
            Ok(Some(Record::Event(event))) => export.event(&event)?,
            Ok(Some(Record::Tick(now))) => export.tick(now)?,
            Ok(Some(Record::Anchor(anchor))) => export.anchor(anchor),
            Ok(Some(Record::Closing(_))) => {}
            Ok(None) => break,
            Err(error @ ReadError::Damaged { .. }) => progress(reader.offset(), Some(&error)),
            Err(error) => return Err(io::Error::other(error)),
        }
        if done != reader.offset() {
            done = reader.offset();
            progress(done, None);
        }
    }
    export.finish(&recording.input())?;
    Ok(())
}

/// Reads the recording's first seconds for the names of processes.
fn look_ahead(recording: &Recording) -> io::Result<Opening> {
    let header = recording.header();
    let mut opening = Opening::new(&header.source, &header.tokengap, header.anchor);
    let mut reader = recording.reader();
    loop {
        match reader.next() {
            Ok(Some(Record::Event(event))) if !opening.learn(&event) => break,
            // Damage is reported when it is reached during writing.
            Ok(Some(_)) | Err(ReadError::Damaged { .. }) => {}
            Ok(None) => break,
            Err(error) => return Err(io::Error::other(error)),
        }
    }
    Ok(opening)
}
