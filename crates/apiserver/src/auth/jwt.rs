//! JSON Web Tokens: signed and checked with the library that TLS also uses.
//!
//! Supports only the compact form and signatures with public keys. The caller decides which algorithms are allowed. A token with
//! critical extensions (`crit`) is refused, since none are supported.

use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, KeyPair, RsaPublicKeyComponents, UnparsedPublicKey};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the signing key is not a PEM file with a P-256 key in PKCS #8")]
    Key,
    #[error("the claims cannot be written as JSON")]
    Claims(#[from] serde_json::Error),
    #[error("the signature cannot be made")]
    Signature,
}

/// How a token is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
}

impl FromStr for Algorithm {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Ok(match name {
            "RS256" => Self::Rs256,
            "RS384" => Self::Rs384,
            "RS512" => Self::Rs512,
            "PS256" => Self::Ps256,
            "PS384" => Self::Ps384,
            "PS512" => Self::Ps512,
            "ES256" => Self::Es256,
            "ES384" => Self::Es384,
            "EdDSA" => Self::EdDsa,
            _ => return Err(()),
        })
    }
}

/// Signs tokens with a P-256 key.
pub struct Signer {
    key: EcdsaKeyPair,
    key_id: String,
    random: SystemRandom,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Signer").field("key_id", &self.key_id).finish_non_exhaustive()
    }
}

impl Signer {
    pub fn new(key_pem: &str, key_id: &str) -> Result<Self, Error> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(key_pem.as_bytes()).map_err(|_| Error::Key)?;
        let random = SystemRandom::new();
        let algorithm = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        let key = EcdsaKeyPair::from_pkcs8(algorithm, der.secret_pkcs8_der(), &random);
        Ok(Self { key: key.map_err(|_| Error::Key)?, key_id: key_id.to_owned(), random })
    }

    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    pub fn public_key(&self) -> PublicKey {
        PublicKey::P256(self.key.public_key().as_ref().to_vec())
    }

    /// Returns a token with these claims. No two tokens are equal, even with equal claims.
    pub fn sign(&self, claims: &impl Serialize) -> Result<String, Error> {
        let header = serde_json::json!({"alg": "ES256", "kid": self.key_id}).to_string();
        let claims = serde_json::to_vec(claims)?;
        let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let signature = self.key.sign(&self.random, message.as_bytes()).map_err(|_| Error::Signature)?;
        Ok(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// A key that verifies signatures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublicKey {
    /// An uncompressed point.
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
    /// Modulus and exponent, big-endian, without leading zeros.
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
}

/// A key in the form in which issuers publish it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Jwk {
    kty: String,
    crv: String,
    #[serde(rename = "use")]
    usage: Option<String>,
    pub kid: Option<String>,
    x: String,
    y: String,
    n: String,
    e: String,
}

impl Jwk {
    /// Returns the key if it is for signatures and of a known type.
    pub fn public_key(&self) -> Option<PublicKey> {
        if self.usage.as_deref().is_some_and(|usage| usage != "sig") {
            return None;
        }
        let bytes = |text: &str| URL_SAFE_NO_PAD.decode(text).ok().filter(|bytes| !bytes.is_empty());
        let number = |text: &str| {
            let bytes = bytes(text)?;
            Some(bytes.into_iter().skip_while(|byte| *byte == 0).collect::<Vec<u8>>())
        };
        let point = |length: usize| {
            let (x, y) = (bytes(&self.x)?, bytes(&self.y)?);
            (x.len() == length && y.len() == length).then(|| [&[4][..], &x, &y].concat())
        };
        Some(match (self.kty.as_str(), self.crv.as_str()) {
            ("RSA", _) => PublicKey::Rsa { n: number(&self.n)?, e: number(&self.e)? },
            ("EC", "P-256") => PublicKey::P256(point(32)?),
            ("EC", "P-384") => PublicKey::P384(point(48)?),
            ("OKP", "Ed25519") => PublicKey::Ed25519(bytes(&self.x)?),
            _ => return None,
        })
    }
}

impl PublicKey {
    fn verify(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        let verified = match (self, algorithm) {
            (Self::P256(key), Algorithm::Es256) => {
                UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, key).verify(message, signature)
            }
            (Self::P384(key), Algorithm::Es384) => {
                UnparsedPublicKey::new(&signature::ECDSA_P384_SHA384_FIXED, key).verify(message, signature)
            }
            (Self::Ed25519(key), Algorithm::EdDsa) => {
                UnparsedPublicKey::new(&signature::ED25519, key).verify(message, signature)
            }
            (Self::Rsa { n, e }, algorithm) => {
                let parameters = match algorithm {
                    Algorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
                    Algorithm::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
                    Algorithm::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
                    Algorithm::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
                    Algorithm::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
                    Algorithm::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
                    Algorithm::Es256 | Algorithm::Es384 | Algorithm::EdDsa => return false,
                };
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            _ => return false,
        };
        verified.is_ok()
    }
}

#[derive(Debug, Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<IgnoredAny>,
}

/// A parsed token; nothing in it is trusted yet.
#[derive(Debug)]
pub struct Token<'a> {
    pub algorithm: Algorithm,
    pub key_id: Option<String>,
    message: &'a str,
    claims: Vec<u8>,
    signature: Vec<u8>,
}

impl<'a> Token<'a> {
    /// Returns `None` if the text is not a token, or if its algorithm is unknown.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (message, signature) = text.rsplit_once('.')?;
        let (header, claims) = message.split_once('.')?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        let header: Header = serde_json::from_slice(&decode(header)?).ok()?;
        if header.crit.is_some() {
            return None;
        }
        Some(Self {
            algorithm: header.alg.parse().ok()?,
            key_id: header.kid,
            message,
            claims: decode(claims)?,
            signature: decode(signature)?,
        })
    }

    /// Returns the claims if this key signed them.
    pub fn verified<T: DeserializeOwned>(&self, key: &PublicKey) -> Option<T> {
        if !key.verify(self.algorithm, self.message.as_bytes(), &self.signature) {
            return None;
        }
        serde_json::from_slice(&self.claims).ok()
    }

    /// Returns the claims without checking the signature.
    pub fn unverified<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&self.claims).ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn signer() -> Signer {
        Signer::new(&rcgen::KeyPair::generate().unwrap().serialize_pem(), "k").unwrap()
    }

    fn verified(token: &str, key: &PublicKey) -> Option<Value> {
        Token::parse(token)?.verified(key)
    }

    #[test]
    fn only_signed_tokens_are_accepted() {
        let signer = signer();
        let token = signer.sign(&json!({"sub": "jane"})).unwrap();
        assert_eq!(verified(&token, &signer.public_key()), Some(json!({"sub": "jane"})));
        assert_eq!(verified(&token, &self::signer().public_key()), None, "another key");
        let (message, signature) = token.rsplit_once('.').unwrap();
        let header = message.split_once('.').unwrap().0;
        let forged = format!("{header}.{}.{signature}", URL_SAFE_NO_PAD.encode(r#"{"sub":"admin"}"#));
        assert_eq!(verified(&forged, &signer.public_key()), None);
        for broken in ["", "a", "a.b", "a.b.c", &format!("{token}."), &format!("{token}=")] {
            assert_eq!(verified(broken, &signer.public_key()), None, "{broken}");
        }
    }

    #[test]
    fn no_signature_is_not_a_signature_and_unknown_extensions_are_refused() {
        let signer = signer();
        for header in
            [r#"{"alg":"none"}"#, r#"{"alg":"HS256"}"#, r#"{"alg":"ES256","crit":["b64"],"b64":false}"#]
        {
            let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode("{}"));
            let signature = signer.key.sign(&signer.random, message.as_bytes()).unwrap();
            let signed = format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature));
            assert_eq!(verified(&signed, &signer.public_key()), None, "{header}");
            assert_eq!(verified(&format!("{message}."), &signer.public_key()), None, "{header}");
        }
    }

    #[test]
    fn a_key_is_used_for_its_own_algorithm_only() {
        let signer = signer();
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"ES384"}"#);
        let message = format!("{header}.{}", URL_SAFE_NO_PAD.encode("{}"));
        let signature = signer.key.sign(&signer.random, message.as_bytes()).unwrap();
        let token = format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature));
        assert_eq!(verified(&token, &signer.public_key()), None);
    }

    #[test]
    fn keys_of_issuers_are_read_as_the_rfc_shows_them() {
        // The RSA example of RFC 7515, appendix A.2.
        let jwk: Jwk = serde_json::from_value(json!({"kty": "RSA", "e": "AQAB", "n":
            "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMs\
             D1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdV\
             MTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ"}))
        .unwrap();
        let token = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.\
            cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjb\
            KBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZES\
            c6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
        assert_eq!(verified(token, &jwk.public_key().unwrap()).unwrap()["iss"], "joe");
        let unusable = |value: Value| serde_json::from_value::<Jwk>(value).unwrap().public_key().is_none();
        assert!(unusable(json!({"kty": "oct", "k": "c2VjcmV0"})), "a shared secret signs for anybody");
        assert!(unusable(json!({"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"})));
        assert!(unusable(json!({"kty": "RSA", "use": "enc", "e": "AQAB", "n": "AQAB"})));
    }
}
