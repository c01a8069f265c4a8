//! `cargo xtask fuzz`: fuzzes every parser with libFuzzer, starting from real messages. `fuzz/run.py` builds and runs the targets. This
//! command generates the seeds that need the project's own Rust code: blocks of the recordings in `recording/fixtures`.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use recording::{BlockPacker, BlockWriter, Record, RecordedPayload, Recording, UncompressedBlock};

use crate::script::{self, project_root};

#[derive(clap::Args)]
pub(crate) struct FuzzOptions {
    /// Run only this target; repeatable
    #[arg(long, value_name = "NAME")]
    target: Vec<String>,
    /// Seconds to run each target; 600 for a nightly run
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    time: u64,
    /// Number of targets to run at once
    #[arg(long, value_name = "N", default_value_t = std::thread::available_parallelism().map_or(2, usize::from))]
    jobs: usize,
    /// libFuzzer's random seed, to repeat a run; 0 picks a new seed for each run
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u32,
    /// Build the targets without running them
    #[arg(long)]
    no_run: bool,
}

/// Runs `cargo xtask fuzz`.
pub(crate) fn fuzz_parsers(options: &FuzzOptions) -> Result<()> {
    if options.no_run {
        return script::run_script("../../fuzz/run.py", ["build"]);
    }
    let root = project_root();
    let is_block_wanted = options.target.is_empty() || options.target.iter().any(|name| name == "block");
    if is_block_wanted {
        write_seeds(root, "block", &block_seeds(root)?)?;
    }
    let numbers = [options.time, options.jobs as u64, u64::from(options.seed)].map(|number| number.to_string());
    script::run_script("../../fuzz/run.py", numbers.iter().chain(&options.target))
}

/// Writes the seeds of a target, one file each.
fn write_seeds(root: &Path, target: &str, seeds: &[Vec<u8>]) -> Result<()> {
    let dir = root.join("target/fuzz/seeds").join(target);
    fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    for (index, seed) in seeds.iter().enumerate() {
        fs::write(dir.join(format!("{index:04}")), seed)?;
    }
    Ok(())
}

/// Passes every record of the recorded fixtures to `each`.
fn for_each_record(root: &Path, mut each: impl FnMut(&Record<'_>) -> Result<()>) -> Result<()> {
    for entry in fs::read_dir(root.join("recording/fixtures"))? {
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

/// Seeds for the fuzz target of blocks, which are the parts of a recording: each is a small block of recorded events. Records behind the
/// last full block are left out.
fn block_seeds(root: &Path) -> Result<Vec<Vec<u8>>> {
    /// Number of records from which a block is made.
    const RECORDS: usize = 40;
    let mut writer = BlockWriter::new(RecordedPayload::Tokens);
    let mut packer = BlockPacker::new()?;
    let mut seeds = Vec::new();
    let mut record_count = 0;
    for_each_record(root, |record| {
        match record {
            Record::Event(event) => writer.record_event(event),
            Record::Tick(now) => writer.record_tick(*now),
            _ => {}
        }
        record_count += 1;
        let is_block_full = record_count % RECORDS == 0;
        if is_block_full && let Some(block) = writer.close_block() {
            seeds.push(seed_of_block(&mut packer, &block)?);
        }
        Ok(())
    })?;
    Ok(seeds)
}

/// The block's columns, uncompressed, behind the numbers of its records and chunks.
fn seed_of_block(packer: &mut BlockPacker, block: &UncompressedBlock) -> Result<Vec<u8>> {
    /// Length of a section's header, which docs/internals/RECORDING.md specifies.
    const HEADER_LENGTH: usize = 88;
    let numbers = [block.records() as u16, block.chunks() as u16];
    let packed = packer.pack_standalone_block(block)?;
    // Field of the header with the unpacked length of the payload.
    let length_field = packed.get(16..20).context("a block has a header")?;
    let length = u32::from_le_bytes(length_field.try_into()?) as usize;
    let columns = zstd::bulk::decompress(packed.get(HEADER_LENGTH..).context("a block has columns")?, length)?;
    Ok([numbers.map(u16::to_le_bytes).as_flattened(), &columns].concat())
}
