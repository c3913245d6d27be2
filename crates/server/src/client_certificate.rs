//! The verified certificate of a client, as an extension of its requests.

/// Inserted by the TLS listener for connections whose client certificate was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientCertificate {
    pub(crate) common_name: String,
}
