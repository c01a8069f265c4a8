//! Fuzzing seeds that need the project's own Rust code: blocks and states of the recordings in `trace/fixtures`.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use trace::record::{BlockPacker, BlockWriter, Payload, Record, Recording};
use trace::{Analysis, Config};

/// Passes every record of the recorded fixtures to `each`.
fn replay(root: &Path, mut each: impl FnMut(&Record<'_>) -> Result<()>) -> Result<()> {
    for entry in fs::read_dir(root.join("trace/fixtures/recordings"))? {
        let path = entry?.path();
        if path.extension().is_none_or(|kind| kind != "tgap") {
            continue;
        }
        let recording = Recording::open(&path).with_context(|| format!("open {}", path.display()))?;
        let mut reader = recording.reader();
        while let Some(record) = reader.next()? {
            each(&record)?;
        }
    }
    Ok(())
}

/// Columns of small blocks, prefixed with their record and chunk counts.
pub(super) fn blocks(root: &Path) -> Result<Vec<Vec<u8>>> {
    const RECORDS: usize = 40;
    let (mut writer, mut packer) = (BlockWriter::new(Payload::Tokens), BlockPacker::new()?);
    let (mut seeds, mut count) = (Vec::new(), 0);
    replay(root, |record| {
        match record {
            Record::Event(event) => writer.event(event),
            Record::Tick(now) => writer.tick(*now),
            _ => {}
        }
        count += 1;
        if count % RECORDS == 0
            && let Some(block) = writer.close()
        {
            let numbers = [block.records() as u16, block.chunks() as u16];
            let packed = packer.pack(&block)?;
            // docs/internals/RECORDING.md specifies the header's layout and length.
            let length = packed.get(16..20).context("a block has a header")?;
            let length = u32::from_le_bytes(length.try_into()?) as usize;
            let columns = zstd::bulk::decompress(packed.get(88..).context("a block has columns")?, length)?;
            seeds.push([numbers.map(u16::to_le_bytes).as_flattened(), &columns].concat());
        }
        Ok(())
    })?;
    Ok(seeds)
}

/// States of analyses at the start of a run, prefixed with the target's mode and chunk size.
pub(super) fn states(root: &Path) -> Result<Vec<Vec<u8>>> {
    const LONGEST: usize = 12 << 10;
    let (mut analysis, mut seeds) = (Analysis::new(Config::default()), Vec::new());
    replay(root, |record| {
        match record {
            Record::Event(event) => analysis.apply(event),
            Record::Tick(now) => analysis.tick(*now),
            Record::Closing(_) => analysis = Analysis::new(Config::default()),
            Record::Anchor(_) => {}
        }
        if analysis.ledger().totals().events % 8 == 1 {
            let state = rmp_serde::to_vec_named(&analysis)?;
            if state.len() < LONGEST {
                seeds.push([&[1, 0], &state[..]].concat());
            }
        }
        Ok(())
    })?;
    Ok(seeds)
}
