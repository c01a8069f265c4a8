//! Stands in for the encryption in a build without it: refuses connections with a key.

use std::io;

use bytes::BytesMut;
use tokio::net::TcpStream;

use crate::key::Key;
use crate::zmtp::Role;

pub(crate) const PIECE: usize = 1;

pub(crate) enum Opener {}
pub(crate) enum Sealer {}

pub(crate) async fn handshake(_: &mut TcpStream, _: &Key, _: Role) -> io::Result<(Opener, Sealer)> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "the feed was built without the cargo feature `encryption`"))
}

impl Opener {
    pub(crate) fn sealed(&mut self) -> &mut BytesMut {
        match *self {}
    }

    pub(crate) fn open(&mut self, _: &mut BytesMut) -> io::Result<Option<usize>> {
        match *self {}
    }
}

impl Sealer {
    pub(crate) fn seal(&mut self, _: &[u8]) -> io::Result<&[u8]> {
        match *self {}
    }
}
