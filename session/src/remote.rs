//! The recording of a run on another machine or of another process, read from its endpoint.

use std::io;
use std::thread;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HOST, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use recording::{StreamSection, StreamSplitter};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::telemetry::{AccessToken, HOST_HEADER, next_part};

/// Sections received but not polled. Beyond this limit the connection is not read, and the source sees a slow client.
const WAITING_SECTIONS: usize = 8;
/// Maximum time to connect, and for the response to begin.
const PATIENCE: Duration = Duration::from_secs(10);
/// Silence after which a source counts as lost. It normally sends ten sections a second.
const SILENT: Duration = Duration::from_secs(15);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Address of a run, and access to it.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// Address as `HOST:PORT`.
    pub address: String,
    /// Token of the source, if it has one.
    pub token: Option<AccessToken>,
}

/// Event of the connection to a source.
#[derive(Debug)]
pub enum RemoteEvent {
    /// The source answers; with the name of its machine.
    Up(Option<String>),
    /// The connection failed or ended, with the reason. A new attempt follows automatically.
    Down(String),
    /// A section of the recording. After each connection, the kept past comes first.
    Section(Box<StreamSection>),
}

/// Connection to the endpoint of a run, made again whenever it ends.
#[derive(Debug)]
pub struct RemoteRun {
    address: String,
    events: Receiver<RemoteEvent>,
}

impl RemoteRun {
    /// Follows all sources on one thread.
    pub fn start(sources: Vec<RemoteOptions>) -> io::Result<Vec<Self>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let mut runs = Vec::new();
        let mut tasks = JoinSet::new();
        for options in sources {
            let (sender, events) = channel(WAITING_SECTIONS);
            runs.push(Self { address: options.address.clone(), events });
            tasks.spawn_on(async move { follow_source(&options, &sender).await }, runtime.handle());
        }
        thread::Builder::new()
            .name("watch".into())
            .spawn(move || runtime.block_on(async { while tasks.join_next().await.is_some() {} }))?;
        Ok(runs)
    }

    /// Address of the source.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the next event, if there is one.
    pub fn poll(&mut self) -> Option<RemoteEvent> {
        // An empty channel and a closed one look the same here.
        self.events.try_recv().ok()
    }
}

/// Connects repeatedly until the receiver is dropped.
async fn follow_source(options: &RemoteOptions, events: &Sender<RemoteEvent>) {
    let mut pause = FIRST_PAUSE;
    while !events.is_closed() {
        let mut is_reached = false;
        let ended = read_source(options, events, &mut is_reached).await;
        if is_reached {
            pause = FIRST_PAUSE;
        }
        let why = ended.map_or_else(|error| error.to_string(), |()| "the source closed the connection".to_owned());
        if events.send(RemoteEvent::Down(why)).await.is_err() {
            return;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Reads the recording until the connection ends.
async fn read_source(
    options: &RemoteOptions,
    events: &Sender<RemoteEvent>,
    is_reached: &mut bool,
) -> anyhow::Result<()> {
    let mut connection = JoinSet::new();
    let response = timeout(PATIENCE, request_recording(options, &mut connection)).await;
    let response = response.map_err(|_| anyhow::anyhow!("it does not answer"))??;
    check_status(&response, options.token.is_some())?;
    *is_reached = true;
    let host = response.headers().get(HOST_HEADER).and_then(|host| host.to_str().ok()).map(str::to_owned);
    if events.send(RemoteEvent::Up(host)).await.is_err() {
        return Ok(());
    }
    let mut body = response.into_body();
    let mut splitter = StreamSplitter::default();
    loop {
        let part = timeout(SILENT, next_part(&mut body)).await;
        let part = part.map_err(|_| anyhow::anyhow!("nothing received from it for {} s", SILENT.as_secs()))?;
        let Some(part) = part.transpose().map_err(|error| explain(&error))? else {
            return Ok(());
        };
        splitter.extend(&part);
        while let Some(section) = splitter.next_section()? {
            if events.send(RemoteEvent::Section(Box::new(section))).await.is_err() {
                return Ok(());
            }
        }
    }
}

async fn request_recording(
    options: &RemoteOptions,
    connection: &mut JoinSet<hyper::Result<()>>,
) -> anyhow::Result<Response<Incoming>> {
    let stream = TcpStream::connect(&options.address).await?;
    let (mut sender, io) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    connection.spawn(io);
    let mut request = Request::get("/recording").header(HOST, &options.address);
    if let Some(token) = &options.token {
        request = request.header(AUTHORIZATION, token.bearer());
    }
    let response = sender.send_request(request.body(String::new())?).await;
    response.map_err(|error| explain(&error))
}

/// Explains a response other than the recording.
fn check_status(response: &Response<Incoming>, has_token: bool) -> anyhow::Result<()> {
    match response.status() {
        StatusCode::OK => Ok(()),
        StatusCode::UNAUTHORIZED if has_token => anyhow::bail!("it refuses the token: use that of its --token-file"),
        StatusCode::UNAUTHORIZED => {
            anyhow::bail!("it requires a token: use --token-file with that of its --token-file")
        }
        StatusCode::SERVICE_UNAVAILABLE => anyhow::bail!("it has too many clients"),
        StatusCode::NOT_FOUND => anyhow::bail!("it serves no /recording: use the address of tokengap's --metrics"),
        other => anyhow::bail!("it answers with status {other}: use the address of tokengap's --metrics"),
    }
}

fn explain(error: &hyper::Error) -> anyhow::Error {
    if error.is_parse() {
        anyhow::anyhow!("it does not answer in HTTP: use the address of tokengap's --metrics")
    } else if error.is_incomplete_message() || error.is_body_write_aborted() {
        anyhow::anyhow!("the source closed the connection before its end")
    } else {
        anyhow::anyhow!("the connection failed: {error}")
    }
}

impl AccessToken {
    /// Value of the header that sends the token.
    fn bearer(&self) -> HeaderValue {
        let text = [b"Bearer ", self.bytes()].concat();
        // A token consists of graphic ASCII characters only.
        let mut value = HeaderValue::from_bytes(&text).expect("graphic ASCII characters");
        value.set_sensitive(true);
        value
    }
}
