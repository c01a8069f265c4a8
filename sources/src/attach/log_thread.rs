//! Reading of workers' logs on a thread of its own, since a log may be on a file system that does not answer.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use probe_user::discover::Process;

use super::worker_logs::WorkerLogs;

/// Maximum wait for the new lines. The line of a request is needed before its first token, which the ring may already hold.
const PATIENCE: Duration = Duration::from_millis(20);
/// Duration after which a thread that does not answer is not waited for any more: a file does not answer, or the machine is overloaded.
const MAX_LATENESS: Duration = Duration::from_millis(200);
/// Duration after which a log counts as one that does not answer.
const STALLED: Duration = Duration::from_secs(5);
/// Maximum number of ids that were read and not yet used. Reading waits when there are as many.
const QUEUE_LENGTH: usize = 4_096;

/// The ids of a request in a log: that of the frontend, and that of the engine.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LoggedIds {
    pub(super) context: String,
    pub(super) rid: String,
}

enum LogCommand {
    /// Follow this file, and answer whether it could be opened.
    Follow(PathBuf, Sender<io::Result<()>>),
    /// Follow the standard output and error of this process.
    FollowOutput(Box<Process>),
    /// Read all new lines.
    Read,
}

enum LogMessage {
    Ids(LoggedIds),
    /// All lines of the last request were read.
    Done,
}

/// The followed logs, once there are any. The thread ends with this value, unless it waits for a file.
#[derive(Default)]
pub(super) struct LogThread {
    channels: Option<LogChannels>,
}

struct LogChannels {
    commands: Sender<LogCommand>,
    messages: Receiver<LogMessage>,
    /// When the thread did not answer the last request in time, until it does.
    late_since: Option<Instant>,
}

/// Error of a command that the thread can no longer receive.
fn thread_ended_error() -> io::Error {
    io::Error::other("the thread that reads logs has ended")
}

impl LogThread {
    /// Follows a log from its current end. Waits until it is open, so call this only before the ring is read. Fails if it cannot be
    /// opened.
    pub(super) fn follow_log_and_wait(&mut self, path: &Path) -> io::Result<()> {
        let (answer, answered) = channel();
        self.send(LogCommand::Follow(path.to_owned(), answer))?;
        answered.recv().unwrap_or_else(|_| Err(thread_ended_error()))
    }

    /// Follows a log from its current end, without waiting until it is open.
    pub(super) fn follow_log_without_waiting(&mut self, path: &Path) -> io::Result<()> {
        // Nobody waits for the answer.
        let (answer, _) = channel();
        self.send(LogCommand::Follow(path.to_owned(), answer))
    }

    /// Follows the standard output and error of a worker if they are regular files.
    pub(super) fn follow_output(&mut self, process: &Process) {
        if let Err(error) = self.send(LogCommand::FollowOutput(Box::new(process.clone()))) {
            tracing::info!("the output of process {} cannot be followed: {error}", process.id.pid);
        }
    }

    /// Sends a command to the thread. The first command starts the thread.
    fn send(&mut self, command: LogCommand) -> io::Result<()> {
        if self.channels.is_none() {
            let (commands, received) = channel();
            let (sender, messages) = sync_channel(QUEUE_LENGTH);
            thread::Builder::new().name("logs".into()).spawn(move || run_log_thread(&received, &sender))?;
            self.channels = Some(LogChannels { commands, messages, late_since: None });
        }
        let channels = self.channels.as_ref().ok_or_else(thread_ended_error)?;
        channels.commands.send(command).map_err(|_| thread_ended_error())
    }

    /// Passes the ids of new lines to `handle_ids`. Waits for the thread only briefly, and not at all while it is late. Without a followed
    /// log, there are none.
    pub(super) fn read_new_ids(&mut self, handle_ids: impl FnMut(LoggedIds)) {
        if let Some(channels) = &mut self.channels {
            channels.read_new_ids(handle_ids);
        }
    }

    /// Passes the ids of all lines that were written before this call to `handle_ids`, including lines that the last poll did not wait for.
    pub(super) fn read_ids_written_so_far(&mut self, handle_ids: impl FnMut(LoggedIds)) {
        if let Some(channels) = &mut self.channels {
            channels.read_ids_written_so_far(handle_ids);
        }
    }

    /// Whether a log does not answer.
    pub(super) fn is_stalled(&self) -> bool {
        let late_since = self.channels.as_ref().and_then(|channels| channels.late_since);
        late_since.is_some_and(|since| since.elapsed() >= STALLED)
    }
}

impl LogChannels {
    /// Makes the thread read the logs and passes the ids that it finds to `handle_ids`. Does not wait again for a thread that did not
    /// answer in time. Its messages are passed when they arrive.
    fn read_new_ids(&mut self, mut handle_ids: impl FnMut(LoggedIds)) {
        if self.late_since.is_some() {
            let without_wait = Instant::now();
            self.receive_ids_until(without_wait, &mut handle_ids);
        } else {
            self.request_and_receive_ids(&mut handle_ids);
        }
    }

    /// Passes the ids in all log lines written so far to `handle_ids`. Waits a little for a log thread that is late, because it may only
    /// lack a CPU. The thread then reads the logs again, because its late answer may lack the latest lines.
    fn read_ids_written_so_far(&mut self, mut handle_ids: impl FnMut(LoggedIds)) {
        if let Some(late_since) = self.late_since {
            // The thread is probably blocked, so another wait would not help.
            if late_since.elapsed() >= MAX_LATENESS {
                return;
            }
            self.receive_ids_until(Instant::now() + PATIENCE, &mut handle_ids);
        }
        if self.late_since.is_none() {
            self.request_and_receive_ids(&mut handle_ids);
        }
    }

    /// Makes the thread read the logs, and waits briefly for the result. Call this only if the thread has answered the last command.
    fn request_and_receive_ids(&mut self, handle_ids: &mut dyn FnMut(LoggedIds)) {
        if self.commands.send(LogCommand::Read).is_ok() {
            self.receive_ids_until(Instant::now() + PATIENCE, handle_ids);
        }
    }

    /// Passes the ids that the thread has found to `handle_ids`, and waits for the rest up to the deadline. Marks the thread as late if it
    /// is not done by then.
    fn receive_ids_until(&mut self, deadline: Instant, handle_ids: &mut dyn FnMut(LoggedIds)) {
        loop {
            match self.messages.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(LogMessage::Ids(ids)) => handle_ids(ids),
                Ok(LogMessage::Done) => {
                    self.late_since = None;
                    return;
                }
                // The thread waits for a file, or has crashed. Its messages are passed at a later poll.
                Err(_) => {
                    self.late_since.get_or_insert_with(Instant::now);
                    return;
                }
            }
        }
    }
}

/// The log thread: executes commands until the other end of the channel is dropped.
fn run_log_thread(commands: &Receiver<LogCommand>, sender: &SyncSender<LogMessage>) {
    let mut logs = WorkerLogs::default();
    for command in commands {
        match command {
            LogCommand::Follow(path, answer) => {
                let followed = logs.follow_log(&path);
                if let Err(error) = &followed {
                    tracing::warn!("cannot follow the log {}: {error}", path.display());
                }
                // Fails only if the other thread has stopped waiting.
                let _ = answer.send(followed);
            }
            LogCommand::FollowOutput(process) => logs.follow_output(&process),
            LogCommand::Read => {
                logs.read_new_lines(|line| {
                    if let Some(ids) = parse_ids(line) {
                        // This send and the next one fail only at the end of the run.
                        let _ = sender.send(LogMessage::Ids(ids));
                    }
                });
                let _ = sender.send(LogMessage::Done);
            }
        }
    }
}

/// The ids of a request in a line of a worker's log, in the wording of any engine; `None` if it names none.
fn parse_ids(line: &str) -> Option<LoggedIds> {
    let (context, rid) = engines::DISCOVERED.iter().find_map(|engine| engine.ids_in_log(line))?;
    Some(LoggedIds { context: context.to_owned(), rid: rid.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Channels of a thread that is played by the test.
    fn channels() -> (LogChannels, Receiver<LogCommand>, SyncSender<LogMessage>) {
        let (commands, received) = channel();
        let (sender, messages) = sync_channel(QUEUE_LENGTH);
        (LogChannels { commands, messages, late_since: None }, received, sender)
    }

    #[test]
    fn a_log_that_does_not_answer_is_waited_for_once() {
        let (mut channels, received, sender) = channels();
        channels.read_new_ids(|_| panic!("nothing was read"));
        assert!(channels.late_since.is_some());
        let begun = Instant::now();
        for _ in 0..100 {
            channels.read_new_ids(|_| panic!("nothing was read"));
        }
        assert!(begun.elapsed() < PATIENCE * 50, "{:?}", begun.elapsed());
        assert_eq!(received.try_iter().count(), 1, "no further requests pile up");
        sender.send(LogMessage::Ids(LoggedIds { context: "a".into(), rid: "b".into() })).unwrap();
        sender.send(LogMessage::Done).unwrap();
        let mut ids = Vec::new();
        // A wait of zero may end before the second message.
        while channels.late_since.is_some() {
            channels.read_new_ids(|new| ids.push(new.rid));
        }
        assert_eq!(ids, ["b"]);
    }

    #[test]
    fn a_late_thread_is_asked_again_for_the_latest_lines() {
        let (mut channels, received, sender) = channels();
        channels.read_new_ids(|_| panic!("nothing was read"));
        // The answer to the first command, and the one to the second, which follows.
        for rid in ["first", "second"] {
            sender.send(LogMessage::Ids(LoggedIds { context: "a".into(), rid: rid.into() })).unwrap();
            sender.send(LogMessage::Done).unwrap();
        }
        let mut rids = Vec::new();
        channels.read_ids_written_so_far(|ids| rids.push(ids.rid));
        assert_eq!((rids, received.try_iter().count()), (vec!["first".to_owned(), "second".to_owned()], 2));

        channels.late_since = Instant::now().checked_sub(MAX_LATENESS);
        let begun = Instant::now();
        for _ in 0..100 {
            channels.read_ids_written_so_far(|_| panic!("nothing was read"));
        }
        assert!(begun.elapsed() < PATIENCE * 50, "a file that does not answer is not waited for");
        assert_eq!(received.try_iter().count(), 0);
    }

    #[test]
    fn lines_are_read_before_the_poll_returns() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut logs = LogThread::default();
        logs.follow_log_and_wait(file.path()).unwrap();
        std::fs::write(file.path(), "no ids here\n").unwrap();
        logs.read_new_ids(|_| panic!("no ids"));
        assert!(logs.follow_log_and_wait(Path::new("/no/such/log")).is_err());
    }
}
