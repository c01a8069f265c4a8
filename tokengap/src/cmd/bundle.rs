//! The archive of `tokengap report --bundle`: what somebody else needs to examine an incident.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use outputs::report::hostile::{self, EscapeForm};
use outputs::report::{Clock, Report};
use recording::{Record, RecordOptions, RecordedPayload, Recorder, Recording, RecordingHeader, read_records};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tempfile::TempPath;
use zstd::stream::write::Encoder;

use crate::cmd::saved;
use crate::progress::Progress;

/// Name of the schema of manifests.
const SCHEMA: &str = "tokengap.bundle/1";
/// Mode of extracted files: they name requests and endpoints.
const OWNER_ONLY: u32 = 0o600;

/// Content of an archive.
pub(crate) struct Bundle {
    pub(crate) report: Report,
    /// Version of tokengap that observed the run.
    recorded_by: String,
    /// Copy of the recording without token ids; removed on drop.
    recording: TempPath,
    doctor: String,
    /// Folder in the archive, so that several can be extracted side by side.
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
    files: Vec<ManifestEntry>,
}

/// A file of an archive.
#[derive(Serialize)]
struct ManifestEntry {
    name: &'static str,
    about: &'static str,
    bytes: u64,
    sha256: String,
}

impl Bundle {
    /// Copies the recording `file` without its token ids beside `archive`, and makes the report of the copy, which cannot contain what the
    /// copy lacks.
    pub(crate) fn of_recording(file: &Path, archive: &Path, slowest: usize, doctor: String) -> anyhow::Result<Self> {
        let original = Recording::open(file)?;
        let copy_folder = archive.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let recording = copy_without_token_ids(&original, copy_folder)?;
        let name = archive.file_name().unwrap_or_default().to_string_lossy();
        let stem = name.split('.').find(|part| !part.is_empty()).unwrap_or("bundle");
        Ok(Self {
            report: saved::load_report(&recording, slowest)?,
            recorded_by: original.header().tokengap.clone(),
            recording,
            doctor,
            folder: stem.to_owned(),
        })
    }

    /// Writes the archive with times of day in `zone`.
    pub(crate) fn write_archive(&self, zone: Option<TimeZone>, out: &mut dyn Write) -> anyhow::Result<()> {
        let created = Timestamp::now();
        let markdown = self.report.to_markdown(&Clock::of(&self.report, zone));
        let doctor = format!(
            "The machine where this archive was made, at {created:.0}; the recording may be from another one.\n\n{}",
            self.doctor
        );
        let mut files = [
            BundledFile::text("report.json", "report", &(self.report.to_json() + "\n"), EscapeForm::Json),
            BundledFile::text("report.md", "report for an issue", &markdown, EscapeForm::Text),
            BundledFile {
                name: "recording.tgap",
                about: "recording without token ids",
                content: Box::new(open_own_file(&self.recording)?),
            },
            BundledFile::text("doctor.txt", "output of tokengap doctor", &doctor, EscapeForm::Text),
        ];
        let manifest = Manifest {
            schema: SCHEMA,
            tokengap: env!("CARGO_PKG_VERSION"),
            recorded_by: &self.recorded_by,
            created: format!("{created:.0}"),
            engine: &self.report.source.engine,
            engine_version: self.report.source.engine_version.as_deref(),
            verdict: &self.report.verdict,
            files: files.iter_mut().map(BundledFile::describe).collect::<io::Result<_>>()?,
        };
        let manifest = serde_json::to_string_pretty(&manifest)? + "\n";
        let manifest = BundledFile::text("manifest.json", "", &manifest, EscapeForm::Json);
        let mut archive = tar::Builder::new(Encoder::new(out, zstd::DEFAULT_COMPRESSION_LEVEL)?);
        for BundledFile { name, mut content, .. } in [manifest].into_iter().chain(files) {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.seek(SeekFrom::End(0))?);
            content.rewind()?;
            header.set_mode(OWNER_ONLY);
            header.set_mtime(created.as_second() as u64);
            archive.append_data(&mut header, Path::new(&self.folder).join(name), content)?;
        }
        archive.into_inner()?.finish()?;
        Ok(())
    }
}

trait ReadSeek: Read + Seek {}
impl<T: Read + Seek> ReadSeek for T {}

/// A file to be archived.
struct BundledFile {
    name: &'static str,
    about: &'static str,
    content: Box<dyn ReadSeek>,
}

impl BundledFile {
    fn text(name: &'static str, about: &'static str, text: &str, form: EscapeForm) -> Self {
        let content = hostile::output(text, form).into_owned();
        Self { name, about, content: Box::new(Cursor::new(content.into_bytes())) }
    }

    /// Its entry in the manifest.
    fn describe(&mut self) -> io::Result<ManifestEntry> {
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 64 << 10];
        let mut bytes = 0;
        loop {
            let length = self.content.read(&mut buffer)?;
            if length == 0 {
                break;
            }
            bytes += length as u64;
            hash.update(&buffer[..length]);
        }
        let mut sha256 = String::new();
        for byte in hash.finalize() {
            let _ = write!(sha256, "{byte:02x}");
        }
        Ok(ManifestEntry { name: self.name, about: self.about, bytes, sha256 })
    }
}

#[expect(clippy::disallowed_methods, reason = "a file that this process has created")]
fn open_own_file(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Copies a recording into a new file in `folder`.
fn copy_without_token_ids(original: &Recording, folder: &Path) -> anyhow::Result<TempPath> {
    let header = RecordingHeader { payload: RecordedPayload::Lengths, ..original.header().clone() };
    // Blocks of a second, so that a replay of the copy seeks as fast.
    let options = RecordOptions { wait: true, anchor_every_ns: None, ..RecordOptions::default() };
    let created = tempfile::Builder::new()
        .prefix(".tokengap-")
        .suffix(".tgap")
        .make_in(folder, |path| Recorder::create(path, &header, options).map_err(io::Error::other));
    let created = created.with_context(|| format!("cannot copy the recording into {}", folder.display()))?;
    let (mut copy, path) = created.into_parts();
    let mut progress = Progress::labelled("copying");
    let mut write = |record: &Record<'_>| match record {
        Record::Event(event) => copy.event(event),
        Record::Tick(now) => copy.tick(*now),
        Record::Anchor(anchor) => copy.anchor(*anchor),
        Record::Closing(_) => {}
    };
    // The input lists what the original misses.
    let input = read_records(original, &mut write, &mut |done, all| progress.set_position(done, all))?;
    match copy.finish(&input)?.stopped {
        Some(why) => bail!("{why}"),
        None => Ok(path),
    }
}

/// Output of `tokengap doctor`, or why there is none.
pub(crate) fn doctor_output() -> String {
    let run = Command::new("/proc/self/exe").arg("doctor").stdin(Stdio::null()).output();
    match run {
        Ok(done) if !done.stdout.is_empty() => String::from_utf8_lossy(&done.stdout).into_owned(),
        // A seccomp filter may end it.
        Ok(done) => format!("tokengap doctor: {}\n{}", done.status, String::from_utf8_lossy(&done.stderr)),
        Err(error) => format!("tokengap doctor cannot be run: {error}\n"),
    }
}
