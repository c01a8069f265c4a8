//! `tokengap decode`: prints the content of captured messages.

mod json;
mod message;
mod text;

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use adapter::decode::LONGEST;
use anyhow::Context as _;

use crate::{advice, app, confinement, output};

/// Show the content of captured messages: class, codec, release, and the tokens, counts and finish reason of each request.
///
/// A file holds one ZMQ message of SGLang or vLLM in its wire format (pickle or msgpack), for example as returned by `recv()`. For a
/// multipart message, it holds the first part.
#[derive(clap::Args)]
#[command(after_help = "Exit codes: 0 every file decoded, 2 at least one failed (the others are still shown).")]
pub(crate) struct Args {
    /// Print one line of JSON per message.
    #[arg(long)]
    json: bool,

    /// Maximum size of a message.
    #[arg(long, value_name = "BYTES", default_value_t = LONGEST)]
    max_bytes: usize,

    /// Maximum bytes of content shown per message; the rest is omitted with a note.
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20)]
    max_output: usize,

    /// Files with one message each; - is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Remaining output budget of a message. A small hostile message could otherwise repeat one long value a million times.
struct OutputBudget(Cell<usize>);

impl OutputBudget {
    fn new(bytes: usize) -> Self {
        Self(Cell::new(bytes))
    }

    /// Charges about `bytes` to the budget and returns whether any is left.
    fn charge(&self, bytes: usize) -> bool {
        self.0.set(self.0.get().saturating_sub(bytes));
        !self.is_exhausted()
    }

    fn is_exhausted(&self) -> bool {
        self.0.get() == 0
    }
}

/// `tokengap decode`: prints the messages in files. Goes on after a file that it cannot read, and then returns exit code 2.
pub(crate) fn run_decode(args: &Args) -> anyhow::Result<ExitCode> {
    let files: Vec<&Path> = args.files.iter().map(PathBuf::as_path).collect();
    let no_results = [];
    confinement::confine_to_files(&files, &no_results);
    let mut reader = message::MessageReader::new(args.max_bytes);
    let mut out = BufWriter::new(output::stdout(app::escape_form(args.json)));
    let mut code = ExitCode::SUCCESS;
    for file in &args.files {
        let message = read_message(file, args.max_bytes);
        let decoded = decode_message(&mut reader, &message);
        write_message_or_error(&mut out, args, file, &decoded)?;
        if decoded.is_err() {
            code = ExitCode::from(2);
        }
    }
    out.flush()?;
    Ok(code)
}

/// Writes a message of `file`, or why the file has none, in the form that the arguments ask for. Says so if the message has more content
/// than the arguments allow.
fn write_message_or_error(
    out: &mut impl Write,
    args: &Args,
    file: &Path,
    decoded: &Result<message::AnyMessage<'_>, String>,
) -> io::Result<()> {
    let name = if file.as_os_str() == "-" { "stdin".into() } else { file.display().to_string() };
    let budget = OutputBudget::new(args.max_output);
    match decoded {
        Ok(message) if args.json => json::write_message(out, &name, message, &budget)?,
        Ok(message) => text::write_message(out, &name, message, &budget)?,
        Err(why) if args.json => json::write_error(out, &name, why)?,
        Err(why) => print_error(out, &name, why)?,
    }
    if budget.is_exhausted() {
        let what = format!("more than {} bytes of content; the rest is omitted (--max-output)", args.max_output);
        print_error(out, &name, &what)?;
    }
    Ok(())
}

/// Decodes the content of a file, or the error of reading it. The error is a line for the user.
fn decode_message<'a>(
    reader: &'a mut message::MessageReader,
    file_content: &'a anyhow::Result<Vec<u8>>,
) -> Result<message::AnyMessage<'a>, String> {
    match file_content {
        Ok(bytes) if bytes.is_empty() => Err(String::from("it is empty; expected a message as returned by recv()")),
        Ok(bytes) => reader.read(bytes),
        Err(why) => Err(advice::error_line_with_advice(why)),
    }
}

/// Prints a line about a file on stderr. Flushes `out` first, so that both streams keep their order on a terminal.
fn print_error(out: &mut impl Write, file: &str, problem: &str) -> io::Result<()> {
    out.flush()?;
    errln!("{file}: {problem}");
    Ok(())
}

/// Reads the message, up to one byte beyond the limit so that the decoder reports an oversized one.
#[expect(clippy::disallowed_methods, reason = "a message that the user named")]
fn read_message(file: &Path, max_bytes: usize) -> anyhow::Result<Vec<u8>> {
    let mut message = Vec::new();
    let read_bytes = (max_bytes as u64).saturating_add(1);
    let read = if file.as_os_str() == "-" {
        io::stdin().lock().take(read_bytes).read_to_end(&mut message)
    } else {
        File::open(file).and_then(|file| file.take(read_bytes).read_to_end(&mut message))
    };
    read.context("it cannot be read")?;
    Ok(message)
}
