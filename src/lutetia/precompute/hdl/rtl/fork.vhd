library ieee;
use ieee.std_logic_1164.all;

-- Hands every sample to each of READERS readers once, in any order. The data goes past it: only valid and ready are here.
entity lutetia_fork is
    generic (READERS : positive := 2);
    port (
        clk, rst : in std_logic;
        in_valid : in std_logic;
        in_ready : out std_logic;
        out_valid : out std_logic_vector(READERS - 1 downto 0);
        out_ready : in std_logic_vector(READERS - 1 downto 0)
    );
end entity;

architecture behaviour of lutetia_fork is
    signal done : std_logic_vector(READERS - 1 downto 0);  -- who has the present sample already
    signal taken : std_logic;
begin
    out_valid <= in_valid and not done;
    taken <= and (done or out_ready);
    in_ready <= taken;
    process (clk) begin
        if rising_edge(clk) then
            if rst = '1' or in_valid = '0' or taken = '1' then
                done <= (others => '0');
            else
                done <= done or out_ready;
            end if;
        end if;
    end process;
end architecture;
