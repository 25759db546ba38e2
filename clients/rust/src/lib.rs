//! The Rust stubs of Pillion: the messages and services that callers and workers speak to the sidecar.

/// The package `pillion.v1`: messages by prost, service clients and servers by tonic.
#[allow(clippy::all, clippy::pedantic, missing_docs)]
pub mod v1 {
    include!("gen/pillion.v1.rs");
}
