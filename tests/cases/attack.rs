//! Bytes that nobody should send, for every RPC that the `.proto` files name.
//!
//! Three kinds by turns: noise, messages of plausible form with wild values, and the empty one.

use std::time::Duration;

use prost::bytes::{Buf, BufMut};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::support::Dice;

/// The files that name the RPCs: what is added there is attacked here.
const PROTOS: [(&str, &str); 7] = [
    (
        "framework",
        include_str!("../../proto/mete/framework/v1/framework.proto"),
    ),
    (
        "admin",
        include_str!("../../proto/mete/admin/v1/admin.proto"),
    ),
    (
        "agent",
        include_str!("../../proto/mete/agent/v1/agent.proto"),
    ),
    (
        "explain",
        include_str!("../../proto/mete/explain/v1/explain.proto"),
    ),
    (
        "events",
        include_str!("../../proto/mete/events/v1/events.proto"),
    ),
    ("node", include_str!("../../proto/mete/node/v1/node.proto")),
    (
        "batch",
        include_str!("../../proto/mete/batch/v1/batch.proto"),
    ),
];

/// Paths of all RPCs of a package.
fn paths(package: &str) -> Vec<String> {
    let (_, text) = PROTOS
        .iter()
        .find(|(name, _)| *name == package)
        .expect("a known package");
    let mut paths = Vec::new();
    let mut service = "";
    for line in text.lines() {
        let words: Vec<&str> = line
            .split([' ', '('])
            .filter(|word| !word.is_empty())
            .collect();
        match words.as_slice() {
            ["service", name, ..] => service = name,
            ["rpc", name, ..] => paths.push(format!("/mete.{package}.v1.{service}/{name}")),
            _ => {}
        }
    }
    assert!(!paths.is_empty(), "no RPC in package {package}");
    paths
}

/// Sends hostile calls.
#[derive(Debug)]
pub(crate) struct Attack {
    dice: Dice,
}

impl Attack {
    /// An attack that these dice lead.
    pub(crate) fn new(dice: Dice) -> Self {
        Self { dice }
    }

    /// Sends so many calls to each RPC of these packages; says how many were sent. Each ends with
    /// an answer or a status; only a connection that cannot be had is a failure.
    pub(crate) async fn run(&mut self, address: &str, packages: &[&str], times: u32) -> u32 {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let mut sent = 0;
        for path in packages.iter().flat_map(|package| paths(package)) {
            let path: PathAndQuery = path.parse().expect("a path");
            let mut channel = endpoint
                .connect()
                .await
                .expect("the server takes connections");
            for number in 0..times {
                let bytes = self.bytes(number);
                let answered = call(channel.clone(), path.clone(), bytes).await;
                if answered.is_err_and(|status| status.code() == tonic::Code::Unavailable) {
                    channel = endpoint
                        .connect()
                        .await
                        .expect("the server still takes connections");
                }
                sent += 1;
            }
        }
        sent
    }

    fn bytes(&mut self, number: u32) -> Vec<u8> {
        match number {
            0 => Vec::new(),
            number if number % 4 == 1 => {
                let length = self.dice.below(300);
                (0..length).map(|_| self.byte()).collect()
            }
            _ => self.message(4),
        }
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.dice.below(256)).unwrap_or(0)
    }

    /// Fields of any number and kind, some of them messages again.
    fn message(&mut self, depth: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..self.dice.below(12) {
            let field = 1 + self.dice.below(12);
            let value = match self.dice.below(8) {
                0..=2 => {
                    varint(&mut bytes, field << 3);
                    let wild = [
                        0,
                        1,
                        2,
                        3,
                        7,
                        1_000,
                        1 << 31,
                        u64::MAX,
                        1 << 62,
                        u64::MAX >> 1,
                    ];
                    let at = usize::try_from(self.dice.below(10)).unwrap_or(0);
                    varint(&mut bytes, wild[at]);
                    continue;
                }
                3..=5 if depth > 0 => self.message(depth - 1),
                6 => vec![b'x'; usize::try_from(self.dice.below(70_000)).unwrap_or(0)],
                _ => {
                    let words = [
                        "dev",
                        "nobody",
                        "../../etc",
                        "a#1",
                        "",
                        "\u{0}",
                        "o-1-1",
                        "n1/%/'",
                    ];
                    let at = usize::try_from(self.dice.below(8)).unwrap_or(0);
                    words[at].as_bytes().to_vec()
                }
            };
            varint(&mut bytes, field << 3 | 2);
            varint(&mut bytes, u64::try_from(value.len()).unwrap_or(0));
            bytes.extend(value);
        }
        bytes
    }
}

fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(u8::try_from(value & 0x7f).unwrap_or(0) | 0x80);
        value >>= 7;
    }
    bytes.push(u8::try_from(value).unwrap_or(0));
}

/// One call as a stream of one message each way, which is what every RPC is on the wire. A stream
/// that says nothing is left after a moment.
async fn call(channel: Channel, path: PathAndQuery, bytes: Vec<u8>) -> Result<(), Status> {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    let once = tokio_stream::once(bytes);
    let calling = async {
        let mut answer = grpc
            .streaming(Request::new(once), path, Bytes)
            .await?
            .into_inner();
        answer.message().await.map(drop)
    };
    match tokio::time::timeout(Duration::from_millis(150), calling).await {
        Ok(answered) => answered,
        Err(_silent) => Ok(()),
    }
}

/// Bytes as they are, both ways.
#[derive(Clone, Copy, Debug)]
struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = usize;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = usize;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<usize>, Status> {
        let length = buffer.remaining();
        buffer.advance(length);
        Ok(Some(length))
    }
}
