//! Where fuzzing begins: real messages, connections, recordings and logs, in the form that each target takes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Longer files teach a fuzzer little and cost it much.
const LONGEST: u64 = 64 << 10;

/// Writes the seeds of `target` into `dir`.
pub(super) fn write(root: &Path, target: &str, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let messages = || files(&root.join("zmq-tap/fixtures/messages"), &["pkl", "msgpack"]);
    let seeds: Vec<Vec<u8>> = match target {
        "wire" => messages()?,
        "msgpack" => files(&root.join("zmq-tap/fixtures/messages"), &["msgpack"])?,
        // The first byte is the size of the pieces.
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
        // How, and the size of the pieces.
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
        "recording_roundtrip" => messages()?.into_iter().take(100).collect(),
        "import" => {
            let logs = files(&root.join("trace/tests/logs"), &["log"])?;
            // A few lines from here and there.
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
        _ => Vec::new(),
    };
    for (index, seed) in seeds.iter().enumerate() {
        let path = dir.join(format!("{index:04}"));
        fs::write(&path, seed).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
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

/// What a ZMTP 3.1 peer says first, and a READY command.
fn greeting() -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
    bytes.extend_from_slice(b"NULL");
    bytes.resize(64, 0);
    bytes.extend_from_slice(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x04PUSH");
    bytes
}

/// A message of one part.
fn frame(body: &[u8]) -> Vec<u8> {
    let mut bytes = match u8::try_from(body.len()) {
        Ok(length) => vec![0, length],
        Err(_) => [&[2][..], &(body.len() as u64).to_be_bytes()].concat(),
    };
    bytes.extend_from_slice(body);
    bytes
}

/// Records of a ring, each behind half its length: short messages sent, taken and handled.
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

/// The beginnings of a few real libraries; one of them has libzmq's functions where this machine has it.
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
