//! Fuzzing seeds: real messages, connections, recordings and logs in the input format of each target.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use trace::record::{BlockPacker, BlockWriter, Payload, Record, Recording};
use trace::{Analysis, Config};

/// Maximum seed size in bytes; longer files slow the fuzzer and add little coverage.
const LONGEST: u64 = 64 << 10;

/// Writes the seeds of `target` into `dir`.
pub(super) fn write(root: &Path, target: &str, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let messages = || files(&root.join("zmq-tap/fixtures/messages"), &["pkl", "msgpack"]);
    let seeds: Vec<Vec<u8>> = match target {
        "wire" => messages()?,
        "msgpack" => files(&root.join("zmq-tap/fixtures/messages"), &["msgpack"])?,
        // The first byte is the chunk size.
        "zmtp" => messages()?
            .iter()
            .map(|body| prefixed(&[16], &[&greeting(), &frame(body)]))
            .collect(),
        "zmtp_midstream" => {
            let messages = messages()?;
            let pairs = messages.windows(3);
            pairs
                .map(|some| prefixed(&[16], &[&frame(&some[0])[1..], &frame(&some[1]), &frame(&some[2])]))
                .collect()
        }
        // Leading bytes: mode and chunk size.
        "egress" => {
            let served = files(&root.join("zmq-tap/fixtures/egress"), &["bin"])?;
            served
                .iter()
                .map(|bytes| prefixed(&[2, 40], &[&bytes[..bytes.len().min(8 << 10)]]))
                .collect()
        }
        "response_plane" => {
            let plane = files(&root.join("zmq-tap/fixtures/egress/dynamo"), &["bin"])?;
            plane
                .iter()
                .map(|bytes| prefixed(&[1, 40], &[&bytes[..bytes.len().min(8 << 10)]]))
                .collect()
        }
        "recording" => {
            let recordings = files(&root.join("trace/fixtures/recordings"), &["tgap"])?;
            recordings
                .into_iter()
                .map(|bytes| bytes[..bytes.len().min(60 << 10)].to_vec())
                .collect()
        }
        "block" => blocks(root)?,
        "recording_roundtrip" => messages()?.into_iter().take(100).collect(),
        "import" => {
            let logs = files(&root.join("trace/tests/logs"), &["log"])?;
            // A few excerpts of each log.
            logs.iter()
                .flat_map(|log| log.chunks(1500).step_by(7).map(<[u8]>::to_vec))
                .collect()
        }
        "probe_record" => records(&messages()?),
        "sites" => libraries(),
        "proc" => [
            "/proc/self/maps",
            "/proc/self/stat",
            "/proc/self/status",
            "/proc/net/tcp",
            "/proc/net/unix",
            "/proc/self/cmdline",
        ]
        .iter()
        .filter_map(|path| fs::read(path).ok())
        .map(|mut text| {
            text.truncate(3 << 10);
            text
        })
        .collect(),
        // Leading bytes: chunk sizes, and the share sent forward.
        "relay" => messages()?
            .windows(2)
            .step_by(8)
            .map(|pair| {
                prefixed(
                    &[40, 90, 200],
                    &[&greeting(), &frame(&pair[0]), &greeting(), &frame(&pair[1])],
                )
            })
            .collect(),
        // Leading bytes: mode and chunk size.
        "feed" => {
            let mut seeds: Vec<Vec<u8>> = states(root)?.iter().map(|state| prefixed(&[1, 0], &[state])).collect();
            for how in [2, 3] {
                seeds.push(prefixed(
                    &[how, 9],
                    &[&frame(b"\x01stream"), &frame(&[7; 300]), b"\x04\x09\x04PING\x00\x0aab"],
                ));
            }
            seeds
        }
        "query" => FILTERS.iter().map(|text| text.as_bytes().to_vec()).collect(),
        "config" => CONFIGURATIONS.iter().map(|text| text.as_bytes().to_vec()).collect(),
        _ => Vec::new(),
    };
    for (index, seed) in seeds.iter().enumerate() {
        let path = dir.join(format!("{index:04}"));
        fs::write(&path, seed).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

const FILTERS: &[&str] = &[
    "gap>1s drop>0 rid:5b92 state:live",
    "silence>=250ms age<2h sent=10k -flag:abort",
    "deliv<=1M chunks>0 coal=3 lost>0 prompt<4k retract>0 worker:1",
    "flag:DROP! -state:done 5b92",
    "GAP<1.5us taken>9ns",
];

const CONFIGURATIONS: &[&str] = &[
    "[live]\nheadless = true\nrate = 0.5\n[attach]\npid = [1, 2]\nname = \"x\"\nverbose = 3\n[tap]\nseed = 7\n",
    "[run]\npod = \"p\"\n\n[demo]\nseed = 8\npayload = \"tokens\"\n",
    "live.payload = 'safe'\nattach = { pid = 9, pod = \"a\" }\n",
];

/// Passes every record of the recorded fixtures to `each`.
fn replay(root: &Path, mut each: impl FnMut(&Record<'_>) -> Result<()>) -> Result<()> {
    for entry in fs::read_dir(root.join("trace/fixtures/recordings"))? {
        let path = entry?.path();
        if path.extension().is_none_or(|kind| kind != "tgap") {
            continue;
        }
        let recording = Recording::open(&path).with_context(|| format!("open {}", path.display()))?;
        let (mut reader, mut outcome) = (recording.reader(), Ok(()));
        let mut give = |record: Record<'_>| {
            if outcome.is_ok() {
                outcome = each(&record);
            }
        };
        while reader.next(&mut give)? {}
        outcome?;
    }
    Ok(())
}

/// Columns of small blocks, prefixed with their record and chunk counts.
fn blocks(root: &Path) -> Result<Vec<Vec<u8>>> {
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
            seeds.push(prefixed(numbers.map(u16::to_le_bytes).as_flattened(), &[&columns]));
        }
        Ok(())
    })?;
    Ok(seeds)
}

/// States of analyses at the start of a run.
fn states(root: &Path) -> Result<Vec<Vec<u8>>> {
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
                seeds.push(state);
            }
        }
        Ok(())
    })?;
    Ok(seeds)
}

fn prefixed(prefix: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    [prefix, &parts.concat()].concat()
}

/// Contents of the files below `dir` with one of these extensions, the shortest first.
fn files(dir: &Path, extensions: &[&str]) -> Result<Vec<Vec<u8>>> {
    let (mut left, mut found): (Vec<PathBuf>, Vec<(u64, PathBuf)>) = (vec![dir.to_path_buf()], Vec::new());
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("read {}", dir.display()))? {
            let entry = entry?;
            let (path, metadata) = (entry.path(), entry.metadata()?);
            if metadata.is_dir() {
                left.push(path);
            } else if path
                .extension()
                .is_some_and(|kind| extensions.iter().any(|wanted| kind == *wanted))
            {
                found.push((metadata.len(), path));
            }
        }
    }
    found.sort();
    let short = found
        .iter()
        .filter(|(length, path)| *length <= LONGEST || path.extension().is_some_and(|e| e != "pkl"));
    short
        .map(|(_, path)| fs::read(path).with_context(|| format!("read {}", path.display())))
        .collect()
}

/// Greeting of a ZMTP 3.1 peer, and a READY command.
fn greeting() -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
    bytes.extend_from_slice(b"NULL");
    bytes.resize(64, 0);
    bytes.extend_from_slice(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x04PUSH");
    bytes
}

/// A single-part message.
fn frame(body: &[u8]) -> Vec<u8> {
    let mut bytes = match u8::try_from(body.len()) {
        Ok(length) => vec![0, length],
        Err(_) => [&[2][..], &(body.len() as u64).to_be_bytes()].concat(),
    };
    bytes.extend_from_slice(body);
    bytes
}

/// Ring buffer records, each prefixed with half its length: short messages sent, received and processed.
fn records(messages: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let record = |kind: u8, seq: u64, body: &[u8]| {
        let head = [7, 1, seq, body.len() as u64, 0, 0, 0, 0];
        let mut bytes: Vec<u8> = head.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
        for word in [0, 9, body.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend([kind, 0, 0, 102]);
        bytes.extend(body);
        let padded = bytes.len().next_multiple_of(2);
        bytes.resize(padded, 0);
        [&[(padded / 2) as u8][..], &bytes].concat()
    };
    let short = messages.iter().filter(|body| body.len() < 400);
    short
        .map(|body| {
            [
                record(1, 0, body),
                record(3, 0, body),
                record(4, 0, b""),
                record(2, 1, b""),
            ]
            .concat()
        })
        .collect()
}

/// Leading bytes of a few real libraries, including one with libzmq's functions if this machine has it.
fn libraries() -> Vec<Vec<u8>> {
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else {
        return Vec::new();
    };
    let mut paths: Vec<&str> = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).collect();
    paths.dedup();
    let shared = paths.into_iter().filter(|path| path.contains(".so"));
    shared
        .filter_map(|path| fs::read(path).ok())
        .map(|mut image| {
            image.truncate(60 << 10);
            image
        })
        .collect()
}
