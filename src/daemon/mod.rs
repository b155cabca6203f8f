//! Long-running commands: configuration to library `run`, signals, readiness. No decisions.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use mete_model::Code;
use tokio::net::TcpListener;

use crate::cli::support::error::{CliError, Outcome};
use crate::cli::support::print::note;

pub mod agent;
pub mod batch;
pub mod commands;
pub mod demo;
pub mod dev;
pub mod leave;
pub mod leftovers;
pub mod machine;
pub mod master;
pub mod service;

/// Binds a listener, loopback only unless told otherwise.
///
/// # Errors
/// `USAGE`, `NOT_LOOPBACK`, or `ADDRESS_IN_USE` with what to do.
pub async fn bind(listen: &str, insecure: bool) -> Outcome<TcpListener> {
    let address: SocketAddr = listen.parse().map_err(|_| {
        CliError::new(
            Code::Usage,
            format!("'{listen}' is no address to listen on"),
        )
        .fact("it has the form 127.0.0.1:7443; port 0 takes any free port")
    })?;
    if !insecure && !address.ip().is_loopback() {
        let sentence = format!("{address} is not loopback, and nothing is encrypted yet");
        return Err(CliError::new(Code::NotLoopback, sentence)
            .next(
                format!("--listen 127.0.0.1:{}", address.port()),
                "this machine only",
            )
            .next(
                "--insecure",
                "listen anyway: whoever reaches the port owns the cluster",
            ));
    }
    TcpListener::bind(address).await.map_err(|error| {
        if error.kind() == std::io::ErrorKind::AddrInUse {
            let sentence = format!("{address} is in use by another process");
            return CliError::new(Code::AddressInUse, sentence)
                .next(format!("--listen {}:0", address.ip()), "take any free port")
                .next(
                    format!("ss -ltnp 'sport = :{}'", address.port()),
                    "see who has it",
                );
        }
        CliError::new(Code::File, format!("listen on {address}: {error}"))
    })
}

/// Runs a daemon, and says what it serves once it does: when the standard health service on its
/// own address answers, and not before.
///
/// # Errors
/// Those of the daemon.
pub async fn announced(
    address: &str,
    text: String,
    running: impl Future<Output = Outcome>,
) -> Outcome {
    let telling = async {
        serves(address).await;
        note(&text);
        std::future::pending::<Outcome>().await
    };
    tokio::select! {
        ended = running => ended,
        never = telling => never,
    }
}

/// Waits until the health service there says that it serves.
async fn serves(address: &str) {
    use mete_proto::dial::{Dial, TcpDial};
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;
    loop {
        if let Ok(channel) = TcpDial::default().dial(address).await {
            let request = tonic_health::pb::HealthCheckRequest::default();
            // An answer that is long in coming comes when the daemon is ready.
            let answer = HealthClient::new(channel).check(request).await;
            let serving = |status: i32| status == i32::from(ServingStatus::Serving);
            if answer.is_ok_and(|answer| serving(answer.into_inner().status)) {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits for Ctrl-C or SIGTERM.
pub async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = match signal(SignalKind::terminate()) {
        Ok(terminate) => terminate,
        // Without it only Ctrl-C is left.
        Err(_) => return drop(tokio::signal::ctrl_c().await),
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

/// Whether a panic of this thread is caught and answered, as one of the engine is that opens
/// a damaged store: then it is no defect, and nothing is said of it beside the answer.
#[must_use]
pub fn answers_panics() -> bool {
    mete_broker::store::guard::thread_is_guarded()
}

/// Starts the log: for people on a terminal, JSON otherwise; `METE_LOG` chooses what.
pub fn start_log(verbose: u8) {
    use std::io::IsTerminal;
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = std::env::var("METE_LOG").unwrap_or_else(|_| format!("mete={level},{level}"));
    let filter = tracing_subscriber::EnvFilter::try_new(filter)
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // A second start in one process (tests) keeps the first.
    let _ = if std::io::stderr().is_terminal() {
        builder.with_target(false).try_init()
    } else {
        builder.json().try_init()
    };
}

/// Makes a directory, or says why not.
///
/// # Errors
/// `STATE_DIRECTORY`.
pub fn make_directory(path: &Path) -> Outcome {
    std::fs::create_dir_all(path).map_err(|error| {
        let sentence = format!("the directory {} cannot be made: {error}", path.display());
        CliError::new(Code::StateDirectory, sentence)
            .next("--state-dir DIR", "choose one that this user may write")
    })
}
