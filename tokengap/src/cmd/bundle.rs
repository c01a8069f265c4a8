//! The archive of `tokengap report --bundle`: what somebody else needs to examine an incident.

use std::fs::File;
use std::io::{self, Cursor, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use outputs::report::hostile::{self, EscapeForm};
use outputs::report::{Clock, Report};
use recording::{Record, RecordOptions, RecordedPayload, Recorder, Recording, RecordingHeader, read_records};
use serde::Serialize;
use tempfile::TempPath;
use zstd::stream::write::Encoder;

use crate::cmd::saved;
use crate::progress::Progress;

/// Name of the schema of manifests.
const SCHEMA: &str = "tokengap.bundle/1";
/// Bytes of a block of a tar archive.
const TAR_BLOCK: usize = 512;
/// Largest size that the eleven octal digits of a tar header hold.
const TAR_MAX_OCTAL: u64 = (8 << 30) - 1;
/// Positions of fields in a tar header.
const TAR_SIZE: Range<usize> = 124..136;
/// All bytes of the checksum but the last, which is a blank.
const TAR_CHECKSUM: Range<usize> = 148..155;
/// Magic and version.
const TAR_MAGIC: Range<usize> = 257..265;
/// First byte of the prefix, which readers put before the name.
const TAR_PREFIX: usize = 345;

/// Content of an archive.
pub(crate) struct Bundle {
    pub(crate) report: Report,
    /// Version of tokengap that observed the run.
    recorded_by: String,
    /// Copy of the recording without token ids; removed on drop.
    recording: TempPath,
    doctor: String,
    /// Folder in the archive, so that several can be extracted side by side. At most 155 bytes, as in the header of a tar archive.
    folder: String,
}

/// Manifest of an archive, its first file.
#[derive(Serialize)]
struct Manifest<'a> {
    schema: &'static str,
    /// Version of tokengap that wrote the archive.
    tokengap: &'static str,
    recorded_by: &'a str,
    created: String,
    engine: &'a str,
    engine_version: Option<&'a str>,
    verdict: &'a str,
    files: &'a [BundledFile],
}

impl Bundle {
    /// Copies the recording `file` into the folder of `archive`, without its token ids. The report is made from the copy, so it contains no
    /// more than the copy. It lists `slowest_count` requests.
    pub(crate) fn of_recording(
        file: &Path,
        archive: &Path,
        slowest_count: usize,
        doctor_output: String,
    ) -> anyhow::Result<Self> {
        let original = Recording::open(file)?;
        let recording = copy_without_token_ids(&original, folder_of(archive))?;
        Ok(Self {
            report: saved::load_report(&recording, slowest_count)?,
            recorded_by: original.header().tokengap.clone(),
            recording,
            doctor: doctor_output,
            folder: folder_in_archive(archive),
        })
    }

    /// Writes the archive with times of day in `zone`.
    pub(crate) fn write_archive(&self, zone: Option<TimeZone>, out: &mut dyn Write) -> anyhow::Result<()> {
        let created = Timestamp::now();
        let files = self.bundled_files(zone, created)?;
        let manifest = self.manifest_of(&files, created)?;
        let mut archive = Encoder::new(out, zstd::DEFAULT_COMPRESSION_LEVEL)?;
        archive.include_checksum(true)?;
        write_tar_entry(&mut archive, &self.folder, manifest, created)?;
        for file in files {
            write_tar_entry(&mut archive, &self.folder, file, created)?;
        }
        // Two blocks of zeros end an archive.
        archive.write_all(&[0; 2 * TAR_BLOCK])?;
        archive.finish()?;
        Ok(())
    }
}

impl Bundle {
    /// The files of the archive apart from the manifest, with times of day in `zone`.
    fn bundled_files(&self, zone: Option<TimeZone>, created: Timestamp) -> anyhow::Result<[BundledFile; 4]> {
        let markdown = self.report.to_markdown(&Clock::of(&self.report, zone));
        let doctor = format!(
            "The machine where this archive was made, at {created:.0}; the recording may be from another one.\n\n{}",
            self.doctor
        );
        let recording = open_own_file(&self.recording)?;
        Ok([
            BundledFile::text("report.json", "report", &(self.report.to_json() + "\n"), EscapeForm::Json),
            BundledFile::text("report.md", "report for an issue", &markdown, EscapeForm::Text),
            BundledFile {
                name: "recording.tgap",
                about: "recording without token ids",
                bytes: recording.metadata()?.len(),
                content: Box::new(recording),
            },
            BundledFile::text("doctor.txt", "output of tokengap doctor", &doctor, EscapeForm::Text),
        ])
    }

    /// The manifest, a file that lists the others.
    fn manifest_of(&self, files: &[BundledFile], created: Timestamp) -> anyhow::Result<BundledFile> {
        let manifest = Manifest {
            schema: SCHEMA,
            tokengap: env!("CARGO_PKG_VERSION"),
            recorded_by: &self.recorded_by,
            created: format!("{created:.0}"),
            engine: &self.report.source.engine,
            engine_version: self.report.source.engine_version.as_deref(),
            verdict: &self.report.verdict,
            files,
        };
        let manifest = serde_json::to_string_pretty(&manifest)? + "\n";
        // The manifest does not list itself.
        let no_description = "";
        Ok(BundledFile::text("manifest.json", no_description, &manifest, EscapeForm::Json))
    }
}

/// The folder of a file. The parent of a bare file name is empty: it means the working folder.
fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The folder into which the archive unpacks: the archive's name without its extensions, as far as that fits into a header.
fn folder_in_archive(archive: &Path) -> String {
    let name = archive.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.split('.').find(|part| !part.is_empty()).unwrap_or("bundle");
    stem[..stem.floor_char_boundary(TAR_PREFIX_BYTES)].to_owned()
}

/// Writes the header and the content of a file, and zeros up to the end of its last block.
fn write_tar_entry(archive: &mut impl Write, folder: &str, file: BundledFile, modified: Timestamp) -> io::Result<()> {
    let BundledFile { name, bytes, mut content, .. } = file;
    archive.write_all(&tar_header(folder, name, bytes, modified))?;
    io::copy(&mut content, archive)?;
    let padded_bytes = bytes.next_multiple_of(TAR_BLOCK as u64);
    archive.write_all(&[0; TAR_BLOCK][..(padded_bytes - bytes) as usize])
}

/// Longest prefix of a name in a tar header.
const TAR_PREFIX_BYTES: usize = 155;

/// Header of a file in a tar archive, in the format `ustar` of POSIX: fields at fixed offsets, with numbers as octal digits.
fn tar_header(folder: &str, name: &str, bytes: u64, modified: Timestamp) -> [u8; TAR_BLOCK] {
    // The files name requests and endpoints, so only their owner may read them.
    let mode = "0000600\0";
    let owner_and_group = "0000000\x000000000\0";
    // Replaced below if the size has too many digits.
    let size = bytes.min(TAR_MAX_OCTAL);
    let seconds = modified.as_second();
    // The checksum is computed over a header with blanks in its place.
    let blank_checksum = "        ";
    let regular_file = "0";
    let start =
        format!("{name:\0<100}{mode}{owner_and_group}{size:011o}\0{seconds:011o}\0{blank_checksum}{regular_file}");
    let mut header = [0; TAR_BLOCK];
    header[..start.len()].copy_from_slice(start.as_bytes());
    header[TAR_MAGIC].copy_from_slice(b"ustar\x0000");
    header[TAR_PREFIX..TAR_PREFIX + folder.len()].copy_from_slice(folder.as_bytes());
    if bytes > TAR_MAX_OCTAL {
        header[TAR_SIZE].copy_from_slice(&binary_size_field(bytes));
    }
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    // Six digits and a zero byte replace the blanks; the last one stays.
    header[TAR_CHECKSUM].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header
}

/// Field for a size with too many digits for a tar header: a big-endian number of twelve bytes with the highest bit set, as GNU tar,
/// libarchive and Python write and read it.
fn binary_size_field(bytes: u64) -> [u8; 12] {
    let mut field = [0; 12];
    field[4..].copy_from_slice(&bytes.to_be_bytes());
    field[0] = 0x80;
    field
}

/// A file to be archived, with its entry in the manifest.
#[derive(Serialize)]
struct BundledFile {
    name: &'static str,
    about: &'static str,
    bytes: u64,
    #[serde(skip)]
    content: Box<dyn Read>,
}

impl BundledFile {
    /// A file with this text, in which control characters are escaped. `about` describes it in the manifest.
    fn text(name: &'static str, about: &'static str, text: &str, form: EscapeForm) -> Self {
        let content = hostile::escape_output(text, form).into_owned();
        Self { name, about, bytes: content.len() as u64, content: Box::new(Cursor::new(content.into_bytes())) }
    }
}

#[expect(clippy::disallowed_methods, reason = "a file that this process has created")]
fn open_own_file(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Copies a recording without its token ids into a new file in `folder`, which is removed when the result is dropped.
fn copy_without_token_ids(original: &Recording, folder: &Path) -> anyhow::Result<TempPath> {
    let header = RecordingHeader { payload: RecordedPayload::Lengths, ..original.header().clone() };
    // The recorder waits for the disk instead of dropping blocks. It adds no anchors (readings of both clocks), because those of the
    // original are copied. Blocks have their default length, so that a replay of the copy seeks as fast.
    let options = RecordOptions { wait: true, anchor_every_ns: None, ..RecordOptions::default() };
    let created = tempfile::Builder::new()
        .prefix(".tokengap-")
        .suffix(".tgap")
        .make_in(folder, |path| Recorder::create(path, &header, options).map_err(io::Error::other));
    let created = created.with_context(|| format!("cannot copy the recording into {}", folder.display()))?;
    let (mut copy, path) = created.into_parts();
    let mut progress = Progress::labelled("copying");
    // The input lists what the original misses.
    let input = read_records(original, &mut |record| copy_record(&mut copy, record), &mut |done, all| {
        progress.draw_position_if_due(done, all);
    })?;
    match copy.finish(&input)?.stopped {
        Some(why) => bail!("{why}"),
        None => Ok(path),
    }
}

/// Writes a record into the copy of a recording.
fn copy_record(copy: &mut Recorder, record: &Record<'_>) {
    match record {
        Record::Event(event) => copy.record_event(event),
        Record::Tick(now) => copy.record_tick(*now),
        Record::Anchor(anchor) => copy.anchor(*anchor),
        // `finish` writes the copy's own.
        Record::Closing(_) => {}
    }
}

/// Output of `tokengap doctor`, or why there is none.
pub(crate) fn doctor_output() -> String {
    let run = Command::new("/proc/self/exe").arg("doctor").stdin(Stdio::null()).output();
    let output = match run {
        Ok(output) => output,
        Err(error) => return format!("tokengap doctor cannot be run: {error}\n"),
    };
    // A seccomp filter may have ended it.
    if output.stdout.is_empty() {
        return format!("tokengap doctor: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_folders_and_large_files_fit_into_a_tar_header() {
        let (folder, nine_gib) = ("f".repeat(155), 9 << 30);
        let mut tar = Command::new("tar");
        tar.arg("-tv").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut tar = tar.spawn().expect("tar");
        let header = tar_header(&folder, "recording.tgap", nine_gib, Timestamp::UNIX_EPOCH);
        tar.stdin.take().expect("a pipe").write_all(&header).expect("it reads");
        // The content is missing.
        let listed = String::from_utf8(tar.wait_with_output().expect("it ends").stdout).expect("text");
        let listed: Vec<&str> = listed.split_whitespace().collect();
        assert_eq!([listed[0], listed[2]], ["-rw-------", "9663676416"], "{listed:?}");
        assert_eq!(listed[5], format!("{folder}/recording.tgap"));
    }
}
