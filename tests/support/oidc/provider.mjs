// A real OAuth 2 provider on loopback. Prints its address once it serves; ends with its standard input.
import { createServer } from 'node:http';
import Provider from 'oidc-provider';

const client = {
  client_secret: 'canary-client-secret-that-is-long-enough',
  application_type: 'native',
  redirect_uris: ['http://127.0.0.1/callback'],
  grant_types: ['authorization_code', 'refresh_token', 'client_credentials'],
  response_types: ['code'],
};

const server = createServer((request, response) => handle(request, response));
let handle;
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [
      { ...client, client_id: 'by-header', token_endpoint_auth_method: 'client_secret_basic' },
      { ...client, client_id: 'by-form', token_endpoint_auth_method: 'client_secret_post' },
    ],
    scopes: ['openid', 'offline_access', 'read', 'write'],
    pkce: { required: () => true },
    features: {
      clientCredentials: { enabled: true },
      devInteractions: { enabled: true },
      introspection: { enabled: true },
      revocation: { enabled: true },
    },
    rotateRefreshToken: true,
    ttl: { AccessToken: 600, ClientCredentials: 600, Grant: 3600, Interaction: 600, RefreshToken: 3600, Session: 600 },
    cookies: { keys: ['a key for tests alone'] },
  });
  handle = provider.callback();
  console.log(issuer);
});
process.stdin.resume().on('end', () => process.exit(0));
