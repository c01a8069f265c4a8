//! Export of a recording.

use std::io::{self, Write};

use super::{Export, Format, Opening, Options};
use crate::Config;
use crate::engine::Engines;
use crate::record::{ReadError, Record, Recording};
use crate::report::ReportInput;

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
    let config = Config {
        engines,
        ..header.config
    };
    let mut export = Export::new(format, options, config, &opening, out)?;
    let mut reader = recording.reader();
    loop {
        let at = |position: usize| {
            recording
                .blocks()
                .get(position)
                .map_or(recording.bytes(), |block| block.offset)
        };
        let mut written = Ok(());
        let more = reader.next(&mut |record| {
            if written.is_ok() {
                written = enter(&mut export, &record);
            }
        });
        written?;
        match more {
            Ok(true) => {}
            Ok(false) => break,
            Err(error @ ReadError::Damaged { .. }) => progress(at(reader.position()), Some(&error)),
            Err(error) => return Err(io::Error::other(error)),
        }
        progress(at(reader.position()), None);
    }
    let input = recording.closing().map_or_else(
        || ReportInput::of(&header.source),
        |closing| closing.input(&header.source),
    );
    export.finish(&input)?;
    Ok(())
}

fn enter(export: &mut Export<'_>, record: &Record<'_>) -> io::Result<()> {
    match record {
        Record::Event(event) => export.event(event),
        Record::Tick(now) => export.tick(*now),
        Record::Anchor(anchor) => {
            export.anchor(anchor.mono, anchor.wall_ns);
            Ok(())
        }
        Record::Closing(_) => Ok(()),
    }
}

/// Reads the recording's first seconds for the names of processes.
fn look_ahead(recording: &Recording) -> io::Result<Opening> {
    let header = recording.header();
    let anchor = header.anchor;
    let mut opening = Opening::new(&header.source, &header.tokengap, anchor.mono, anchor.wall_ns);
    let mut reader = recording.reader();
    let mut enough = false;
    while !enough {
        let more = reader.next(&mut |record| {
            if let Record::Event(event) = &record {
                enough = enough || !opening.learn(event);
            }
        });
        match more {
            // Damage is reported when it is reached during writing.
            Ok(true) | Err(ReadError::Damaged { .. }) => {}
            Ok(false) => break,
            Err(error) => return Err(io::Error::other(error)),
        }
    }
    Ok(opening)
}
